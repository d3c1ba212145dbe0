//! A store whose first connection is made late, with a real Redis behind it, on real time.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::clock::Micros;
use crate::limiter::model::pause::{PauseByHand, PauseRequest};
use crate::limiter::model::upstream_report::UpstreamReport;
use crate::limiter::store::Store;
use crate::redis::RedisStore;
use crate::redis::servers::{Stream, Transport};
use crate::redis::tests::TestStore;
use crate::redis::tests::lost_answers::{limiter_ref, store_over};

const PATIENCE: Duration = Duration::from_secs(20);
const MINUTE: Micros = Micros::from_millis(60_000);
/// How long ago the pauses were made when they are told.
const AGO: Duration = Duration::from_millis(500);

/// Connections to a server that are made once they may be.
struct Late {
    socket: PathBuf,
    wanted: Semaphore,
    allowed: Semaphore,
}

impl Transport for Late {
    fn open(&self) -> BoxFuture<'_, io::Result<Box<dyn Stream>>> {
        async {
            self.wanted.add_permits(1);
            let _allowed = self.allowed.acquire().await;
            Ok(Box::new(UnixStream::connect(&self.socket).await?) as Box<dyn Stream>)
        }
        .boxed()
    }
}

fn store(server: &TestStore, allowed: usize) -> (RedisStore, Arc<Late>) {
    let (wanted, allowed) = (Semaphore::new(0), Semaphore::new(allowed));
    let late = Arc::new(Late { socket: server.socket(), wanted, allowed });
    (store_over(late.clone(), PATIENCE), late)
}

/// Another replica resumes the limiter before the store hears of the pauses, which are older.
#[tokio::test]
async fn a_pause_that_waits_for_a_connection_does_not_become_younger() {
    let server = TestStore::start();
    let ((slow, late), (other, _)) = (store(&server, 0), store(&server, 1));
    let limiter = limiter_ref();
    let made_ago = Micros::from(AGO);
    let by_hand = PauseByHand { lasting: MINUTE, ago: made_ago, replica: 1 };
    let request = PauseRequest {
        wait: Some(MINUTE),
        fallback: MINUTE,
        max: MINUTE,
        sent_ago: made_ago,
        status: 429,
        made_ago,
        ..PauseRequest::default()
    };
    let upstreams = UpstreamReport { replica: 1, pause: Some(request), ..UpstreamReport::default() };
    let resumed = async {
        let _wanted = late.wanted.acquire().await.unwrap();
        let resume = PauseByHand { replica: 2, ..PauseByHand::default() };
        other.pause(&limiter, &resume).await.unwrap();
        // The time that the connection takes, and no condition, is what passes.
        sleep(2 * AGO).await;
        late.allowed.add_permits(1);
    };
    let told = (slow.report_upstream(&limiter, &upstreams), slow.pause(&limiter, &by_hand));
    let (reported, paused, ()) = tokio::join!(told.0, told.1, resumed);
    let reported = reported.map_err(|failure| failure.error);
    for (result, what) in [(reported, "by the upstream"), (paused, "by hand")] {
        assert_eq!(result.unwrap().paused_until, Micros::ZERO, "{what}");
    }
}
