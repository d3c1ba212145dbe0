//! Announcements of the fleet: a connection of its own that receives the messages of scripts.
//!
//! An announcement only saves time: a replica that misses one learns the same from its next answer. So a broken connection is
//! replaced without haste, and a listener that falls behind skips announcements.

use std::time::Duration;

use futures_util::StreamExt;
use redis::RedisError;
use redis::aio::PubSub;
use tokio::sync::broadcast;
use tokio::time::{Instant, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::clock::Micros;
use crate::limiter::model::call::Freed;
use crate::limiter::model::pause::PauseStretch;
use crate::limiter::store::Announcement;
use crate::redis::answers::cause_of;
use crate::redis::keys;
use crate::redis::pool::Connections;

/// Announcements that a listener may lag behind.
const BACKLOG_MAX: usize = 1024;

/// How often the connection is checked: a server that is gone without closing it is noticed within two intervals.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The pauses between two attempts to connect: the shortest, doubled up to the longest.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The receiver of announcements, which passes them on.
pub(super) struct Announcements {
    connections: Connections,
    channel: String,
    connect_timeout: Duration,
    received: broadcast::Sender<Announcement>,
}

impl Announcements {
    pub(super) fn new(connections: Connections, channel: String, connect_timeout: Duration) -> Announcements {
        Announcements { connections, channel, connect_timeout, received: broadcast::channel(BACKLOG_MAX).0 }
    }

    /// Returns the channel that scripts publish to.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Returns a receiver of all later announcements.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Announcement> {
        self.received.subscribe()
    }

    /// Listens until `shutdown`.
    pub(super) async fn listen(&self, shutdown: CancellationToken) {
        let mut retry = RETRY_MIN;
        loop {
            let started = Instant::now();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.connections.servers().switched() => {
                    // The new primary is heard at once.
                    retry = RETRY_MIN;
                    continue;
                }
                result = self.listen_once() => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "announcements of the fleet are not heard");
                    }
                }
            }
            retry = if started.elapsed() > RETRY_MAX { RETRY_MIN } else { (retry * 2).min(RETRY_MAX) };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = sleep(retry) => {}
            }
        }
    }

    async fn connect(&self) -> Result<PubSub, RedisError> {
        let mut connection = self.connections.servers().subscriber().await?;
        connection.subscribe(&self.channel).await?;
        Ok(connection)
    }

    /// Tries to subscribe to the announcements.
    pub(super) async fn try_out(&self) -> Result<(), RedisError> {
        self.connect().await.map(drop)
    }

    /// Receives announcements until the connection breaks.
    async fn listen_once(&self) -> Result<(), RedisError> {
        let Ok(connection) = timeout(self.connect_timeout, self.connect()).await else { return Ok(()) };
        let (mut sink, mut messages) = connection?.split();
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        loop {
            tokio::select! {
                biased;
                message = messages.next() => {
                    let Some(message) = message else { return Ok(()) };
                    if let Some(announcement) = message.get_payload::<String>().ok().as_deref().and_then(decode) {
                        // An error means that nobody listens.
                        let _ = self.received.send(announcement);
                    }
                }
                _ = pings.tick() => {
                    let Ok(answer) = timeout(PING_INTERVAL, sink.ping::<()>()).await else { return Ok(()) };
                    answer?;
                }
            }
        }
    }
}

fn decode(text: &str) -> Option<Announcement> {
    text.strip_prefix("pause ").and_then(decode_pause).or_else(|| decode_freed(text))
}

/// Reads `KEY FROM UNTIL STATUS NAMED REPLICA`, as `report_upstream.lua` and `pause.lua` publish it.
fn decode_pause(text: &str) -> Option<Announcement> {
    let (key, [from, until, status, named, replica]) = numbers_behind(text)?;
    let (name, partition) = keys::limiter_of(key)?;
    let stretch = PauseStretch { from: Micros(from), until: Micros(until) };
    let cause = cause_of(status, named, replica)?;
    Some(Announcement::Pause { name, partition, stretch, cause })
}

/// Reads `KEY FREED_AT PERMITS`, as `reserve.lua` publishes it.
fn decode_freed(text: &str) -> Option<Announcement> {
    let (key, [at, permits]) = numbers_behind(text)?;
    let freed = Freed { at: Micros(at), permits };
    Some(Announcement::Freed { queue: keys::queue_members(key)?, freed })
}

/// Splits a text into a key, which may hold spaces, and the numbers that follow it.
fn numbers_behind<const COUNT: usize>(text: &str) -> Option<(&str, [u64; COUNT])> {
    let (mut key, mut numbers) = (text, [0; COUNT]);
    for number in numbers.iter_mut().rev() {
        let (rest, word) = key.rsplit_once(' ')?;
        (key, *number) = (rest, word.parse().ok()?);
    }
    Some((key, numbers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Partition;
    use crate::limiter::model::limit::LimiterName;
    use crate::limiter::model::pause::{Cause, Reason};

    #[test]
    fn announcements_of_scripts_are_decoded() {
        let tenant = Partition::of([Some(&b"tenant"[..])]);
        let text = format!("weir:{{a b}}:v2:queue:x+y:{tenant} 1800000000000000 3");
        let name = |text| LimiterName::parse(text).unwrap();
        let queue = vec![(name("x"), None), (name("y"), Some(tenant))];
        let freed = Freed { at: Micros(1_800_000_000_000_000), permits: 3 };
        assert_eq!(decode(&text), Some(Announcement::Freed { queue, freed }));
        let stretch = PauseStretch { from: Micros(5), until: Micros(8) };
        let upstream = |status, is_named| Reason::Upstream { status, is_named };
        for (key, partition, told, reason) in [
            ("y".to_owned(), None, "429 1", upstream(429, true)),
            ("y".to_owned(), None, "503 0", upstream(503, false)),
            (format!("y:{tenant}"), Some(tenant), "0 0", Reason::ByHand),
        ] {
            let text = format!("pause weir:{{a b}}:v2:limiter:{key} 5 8 {told} 7");
            let (name, cause) = (name("y"), Cause { reason, replica: 7 });
            assert_eq!(decode(&text), Some(Announcement::Pause { name, partition, stretch, cause }));
        }
        for other in [
            "",
            "weir:{a}:v2:queue:x:y 1 2",
            "weir:{a}:v2:queue:x",
            "weir:{a}:v2:queue:x 1",
            "weir:{a}:v2:queue:x 1 z",
            "x 1 2",
            "pause x 1 2 0 0 7",
            "pause weir:{a}:v2:limiter:x 1",
            "pause weir:{a}:v2:limiter:x 1 2",
            "pause weir:{a}:v2:limiter:x 1 2 99999 0 7",
            "pause weir:{a}:v2:limiter:x 1 2 0 0 0",
            "weir:{a}:v2:limiter:x 1 2",
        ] {
            assert_eq!(decode(other), None, "{other:?}");
        }
    }
}
