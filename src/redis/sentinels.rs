//! The primary that sentinels name. Of several answers the one of the latest failover counts, and no earlier one ever again: a sentinel
//! that was cut off names the old primary still, which may take writes, too.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, ServerErrorKind,
};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::{Instant, interval, timeout, timeout_at};

use super::clients::Clients;
use super::sockets::tcp_settings;
use crate::config::model::{RedisNode, RedisSentinels};

/// How often the sentinels are asked for the primary, beside the messages by which they announce another one.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

/// The channel on which a sentinel announces another primary.
const SWITCHED: &str = "+switch-master";

/// The primary, as a sentinel names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Primary {
    /// The number of the failover that made it the primary: the sentinels' configuration epoch.
    failover: u64,
    host: String,
    port: u16,
}

/// The sentinels of a server.
pub(super) struct Sentinels {
    nodes: Vec<Sentinel>,
    master: String,
    /// The user and the database on the server.
    user: RedisConnectionInfo,
    clients: Arc<Clients>,
    is_encrypted: bool,
    /// How long a sentinel may take to answer.
    patience: Duration,
    known: Mutex<Option<Primary>>,
    /// How often another server has become the primary.
    era: Arc<watch::Sender<u64>>,
}

/// One sentinel, and the connection to it.
struct Sentinel {
    node: RedisNode,
    kept: AsyncMutex<Option<MultiplexedConnection>>,
}

impl Sentinels {
    /// Returns the sentinels, which are not asked yet.
    pub(super) fn new(
        settings: &RedisSentinels,
        clients: Arc<Clients>,
        patience: Duration,
        era: Arc<watch::Sender<u64>>,
    ) -> Sentinels {
        let RedisSentinels { nodes, master, username, password, database } = settings;
        let mut user = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(i64::from(*database));
        if let Some(username) = username {
            user = user.set_username(username);
        }
        if let Some(password) = password {
            user = user.set_password(password.reveal());
        }
        let is_encrypted = nodes.iter().any(|node| node.url.reveal().starts_with("rediss:"));
        let nodes = nodes.iter().map(|node| Sentinel { node: node.clone(), kept: AsyncMutex::default() });
        Sentinels {
            nodes: nodes.collect(),
            master: master.clone(),
            user,
            clients,
            is_encrypted,
            patience,
            known: Mutex::default(),
            era,
        }
    }

    /// Asks for the primary, and returns a client for it.
    pub(super) async fn primary(&self) -> Result<Client, RedisError> {
        let Primary { host, port, .. } = self.ask().await?;
        let address = if self.is_encrypted {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?.set_redis_settings(self.user.clone());
        let info = info.set_tcp_settings(tcp_settings());
        self.clients.to(info).await
    }

    /// Begins another era as soon as the sentinels name another primary. Never returns.
    pub(super) async fn watch(&self) {
        let mut heard: Option<PubSub> = None;
        let mut next = interval(ASK_INTERVAL);
        let mut turn = 0;
        loop {
            let is_open = match &mut heard {
                Some(subscription) => tokio::select! {
                    biased;
                    message = async { subscription.on_message().next().await } => message.is_some(),
                    _ = next.tick() => true,
                },
                None => {
                    next.tick().await;
                    false
                }
            };
            // Without an answer the known primary stays.
            let _ = self.ask().await;
            if !is_open {
                // The next sentinel, as this one does not answer.
                turn += 1;
                heard = self.subscribe(turn).await;
            }
        }
    }

    async fn subscribe(&self, turn: usize) -> Option<PubSub> {
        let sentinel = self.nodes.get(turn % self.nodes.len())?;
        let subscribe = async {
            let mut subscription =
                self.clients.of(&sentinel.node).await.ok()?.get_async_pubsub().await.ok()?;
            subscription.subscribe(SWITCHED).await.ok()?;
            Some(subscription)
        };
        timeout(self.patience, subscribe).await.ok().flatten()
    }

    /// Asks all sentinels, until their answers settle which one is the primary. Returns it; if it is another one than before, another
    /// era begins.
    async fn ask(&self) -> Result<Primary, RedisError> {
        let mut asked: FuturesUnordered<_> = self.nodes.iter().map(|node| self.ask_one(node)).collect();
        let (mut named, mut fault): (Vec<Primary>, Option<RedisError>) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(primary) => named.push(primary),
                Err(error) => fault = Some(error),
            }
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if is_settled(&named, self.nodes.len(), known.as_ref()) {
                break;
            }
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(primary) = believed(&named, self.nodes.len(), known.as_ref()).cloned() else {
            return Err(fault.unwrap_or_else(|| unknown("no sentinel is configured")));
        };
        let before = known.replace(primary.clone());
        let is_at = |before: &Primary| (&before.host, before.port) == (&primary.host, primary.port);
        if before.is_some_and(|before| !is_at(&before)) {
            self.era.send_modify(|era| *era += 1);
        }
        Ok(primary)
    }

    /// Asks one sentinel, within the patience. The connection is kept for the next question, unless this one fails.
    async fn ask_one(&self, sentinel: &Sentinel) -> Result<Primary, RedisError> {
        // One deadline for the connection's turn and the answer, so that those who wait behind a silent sentinel give up with the first.
        let deadline = Instant::now() + self.patience;
        let late = || RedisError::from((ErrorKind::Io, "a sentinel does not answer in time"));
        let mut kept = timeout_at(deadline, sentinel.kept.lock()).await.map_err(|_| late())?;
        let answer = timeout_at(deadline, self.ask_over(sentinel, &mut kept)).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        if answer.is_err() {
            *kept = None;
        }
        answer
    }

    async fn ask_over(
        &self,
        sentinel: &Sentinel,
        kept: &mut Option<MultiplexedConnection>,
    ) -> Result<Primary, RedisError> {
        if kept.is_none() {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.patience))
                .set_response_timeout(Some(self.patience));
            let client = self.clients.of(&sentinel.node).await?;
            *kept = Some(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        let Some(connection) = kept else { return Err(unknown("no connection")) };
        let mut both = redis::pipe();
        both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        both.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        let answer = both.query_async::<(Option<(String, u16)>, Vec<String>)>(connection).await;
        let (address, fields) = answer.map_err(|error| match error.kind() {
            ErrorKind::Server(ServerErrorKind::ResponseError) => unknown("no such master"),
            _ => error,
        })?;
        let (host, port) = address.ok_or_else(|| unknown("no such master"))?;
        let failover = fields.chunks(2).find_map(|pair| match pair {
            [name, value] if name == "config-epoch" => value.parse().ok(),
            _ => None,
        });
        Ok(Primary { failover: failover.unwrap_or_default(), host, port })
    }
}

/// Returns the primary of the latest failover among those that sentinels named, and how many sentinels named it.
fn latest(named: &[Primary]) -> Option<(&Primary, usize)> {
    let latest = named.iter().max()?;
    Some((latest, named.iter().filter(|primary| *primary == latest).count()))
}

/// Returns whether no further answer is awaited: a majority of all sentinels agrees, and on no failover before the known one. An earlier
/// one is believed only if every sentinel names it, so all answers are needed then.
fn is_settled(named: &[Primary], sentinels: usize, known: Option<&Primary>) -> bool {
    latest(named).is_some_and(|(latest, agreed)| {
        agreed > sentinels / 2 && known.is_none_or(|known| latest.failover >= known.failover)
    })
}

/// Returns the primary to believe in after these answers; `None` without any.
fn believed<'a>(named: &'a [Primary], sentinels: usize, known: Option<&'a Primary>) -> Option<&'a Primary> {
    let (latest, agreed) = latest(named)?;
    // Sentinels that were set up anew count from zero again, and then all of them do.
    let is_reset = agreed == sentinels;
    known.filter(|known| known.failover > latest.failover && !is_reset).or(Some(latest))
}

fn unknown(why: &'static str) -> RedisError {
    (ErrorKind::MasterNameNotFoundBySentinel, why).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::{RedisTls, Secret};

    fn primary(failover: u64, host: &str) -> Primary {
        Primary { failover, host: host.to_owned(), port: 6379 }
    }

    /// Reads answers in turn, as `ask` does. Returns the believed primary, and how many answers were read.
    fn read(answers: &[Primary], sentinels: usize, known: Option<&Primary>) -> (Option<Primary>, usize) {
        let settled = (1..=answers.len()).find(|count| is_settled(&answers[..*count], sentinels, known));
        let count = settled.unwrap_or(answers.len());
        (believed(&answers[..count], sentinels, known).cloned(), count)
    }

    #[test]
    fn a_majority_settles_the_primary() {
        let (old, new) = (primary(5, "old"), primary(6, "new"));
        let answers = [new.clone(), new.clone(), new.clone()];
        for known in [None, Some(&old), Some(&new)] {
            assert_eq!(read(&answers, 3, known), (Some(new.clone()), 2), "{known:?}");
        }
        // A sentinel that was cut off names the old primary still.
        assert_eq!(read(&[old.clone(), new.clone(), new.clone()], 3, Some(&old)), (Some(new.clone()), 3));
        assert_eq!(read(&[old.clone(), new.clone()], 3, Some(&old)), (Some(new), 2));
        assert_eq!(read(&[], 3, Some(&old)), (None, 0));
    }

    #[test]
    fn sentinels_that_were_set_up_anew_are_believed_when_all_agree() {
        let (known, anew) = (primary(5, "known"), primary(0, "anew"));
        for sentinels in [1, 3, 5] {
            let answers = vec![anew.clone(); sentinels];
            assert_eq!(read(&answers, sentinels, Some(&known)), (Some(anew.clone()), sentinels));
        }
    }

    #[test]
    fn an_earlier_failover_is_not_believed_while_a_sentinel_is_silent_or_differs() {
        let (known, stale) = (primary(5, "known"), primary(4, "stale"));
        let silent = [stale.clone(), stale.clone()];
        assert_eq!(read(&silent, 3, Some(&known)), (Some(known.clone()), 2));
        let differing = [stale.clone(), stale.clone(), known.clone()];
        assert_eq!(read(&differing, 3, Some(&known)), (Some(known.clone()), 3));
        let one = [stale, known.clone(), known.clone()];
        assert_eq!(read(&one, 3, Some(&known)), (Some(known.clone()), 3));
    }

    const PATIENCE: Duration = Duration::from_millis(250);

    fn sentinels() -> Sentinels {
        let node = RedisNode { url: Secret::new("redis://127.0.0.1:1"), address: "127.0.0.1:1".to_owned() };
        let settings = RedisSentinels {
            nodes: vec![node],
            master: "m".to_owned(),
            username: None,
            password: None,
            database: 0,
        };
        let clients = Arc::new(Clients::new(&RedisTls::default()).unwrap());
        Sentinels::new(&settings, clients, PATIENCE, Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_behind_a_silent_sentinel_give_up_with_the_first() {
        let sentinels = sentinels();
        // The first asker has the connection's turn, and its sentinel is silent.
        let first = sentinels.nodes[0].kept.lock().await;
        let begun = Instant::now();
        let waiting = async { tokio::join!(sentinels.ask(), sentinels.ask(), sentinels.ask()) };
        let (one, two, three) = timeout(2 * PATIENCE, waiting).await.expect("nobody waits longer");
        assert!(one.is_err() && two.is_err() && three.is_err());
        assert!(begun.elapsed() < PATIENCE + Duration::from_millis(10), "{:?}", begun.elapsed());
        drop(first);
    }
}
