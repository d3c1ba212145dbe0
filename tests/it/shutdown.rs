//! SIGTERM: active and queued requests finish, nothing new begins, and the exit code is 0.

use std::io::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::http2::{END_HEADERS, END_STREAM, Event, GET, GOAWAY, HEADERS, Http2, frame, request};
use crate::support::upstream::Gate;
use crate::support::{
    Connection, HeldFile, PATIENCE, Pending, RedisServer, Request, Upstream, Weir, client, eventually, lane,
    one_limiter, one_route, poll_for,
};

const LIMITER: &str = "{limits: [5/1s], queue: {timeout: 30s, max_waiting: 100}}";

/// A weir with a request that its upstream holds.
struct Busy {
    weir: Weir,
    in_flight: Vec<Pending>,
    gate: Gate,
    _upstream: Upstream,
}

impl Busy {
    async fn start() -> Busy {
        let upstream = Upstream::start();
        let gate = upstream.hold("/slow");
        let weir = Weir::start(&one_limiter("memory", LIMITER, &upstream)).await;
        let in_flight = weir.begin(1, "/slow");
        upstream.wait_for(1, PATIENCE).await;
        Busy { weir, in_flight, gate, _upstream: upstream }
    }

    /// Lets the request be answered, behind a signal: the client gets the answer, and weir ends.
    async fn ends_well(mut self) {
        self.gate.open();
        assert_eq!(client::answers(self.in_flight).await[0].status, 200);
        assert_eq!(self.weir.wait_exit(PATIENCE).await.code(), Some(0));
    }
}

#[tokio::test]
async fn requests_in_flight_and_waiting_finish_in_memory() {
    let _lane = lane::shared().await;
    requests_in_flight_and_waiting_finish("memory", Signal::TERM).await;
}

#[tokio::test]
async fn requests_in_flight_and_waiting_finish_with_redis() {
    let _lane = lane::shared().await;
    let redis = RedisServer::start().await;
    requests_in_flight_and_waiting_finish(&redis.store(), Signal::INT).await;
}

async fn requests_in_flight_and_waiting_finish(store: &str, signal: Signal) {
    let upstream = Upstream::start();
    let gate = upstream.hold("/slow");
    let mut weir = Weir::start(&one_limiter(store, LIMITER, &upstream)).await;
    let in_flight = weir.begin(5, "/slow");
    upstream.wait_for(5, PATIENCE).await;
    let waiting = weir.begin(15, "/waits");
    weir.wait_for_waiting(10).await;

    weir.signal(signal);
    eventually("/readyz to say so", async || weir.ask("/readyz").await.status == 503).await;
    assert_eq!(weir.ask("/healthz").await.status, 200);

    client::assert_all_ok(&client::answers(waiting).await);
    gate.open();
    for answer in client::answers(in_flight).await {
        assert_eq!((answer.status, answer.text().as_str()), (200, "upstream"));
    }
    assert_eq!(upstream.count(), 20, "none was lost, none was sent twice");
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

#[tokio::test]
async fn an_idle_weir_ends_soon() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = Weir::start(&one_limiter("memory", LIMITER, &upstream)).await;
    // A connection that is kept alive must not hold up the process.
    let mut idle = Connection::open(&weir.host()).await.unwrap();
    idle.send(&Request::get("/")).await.unwrap();
    assert_eq!(idle.answer().await.unwrap().status, 200);
    weir.sigterm();
    assert_eq!(weir.wait_exit(Duration::from_secs(5)).await.code(), Some(0));
}

#[tokio::test]
async fn no_new_connection_is_taken_while_draining() {
    let _lane = lane::shared().await;
    let busy = Busy::start().await;
    busy.weir.sigterm();
    let host = busy.weir.host();
    eventually("a closed door", async || Connection::open(&host).await.is_err()).await;
    busy.ends_well().await;
}

#[tokio::test]
async fn requests_are_still_taken_during_the_drain_delay() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = format!("server: {{drain_delay: 3s}}\n{}", one_limiter("memory", LIMITER, &upstream));
    let mut weir = Weir::start(&config).await;
    weir.sigterm();
    eventually("/readyz to say so", async || weir.ask("/readyz").await.status == 503).await;
    assert_eq!(weir.get("/").await.status, 200);
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

#[tokio::test]
async fn a_request_that_waits_longer_than_the_drain_is_refused() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let limiter = "{limits: [1/10m], queue: {timeout: 1h, max_waiting: 100}}";
    let config = format!("server: {{drain_timeout: 1s}}\n{}", one_limiter("memory", limiter, &upstream));
    let mut weir = Weir::start(&config).await;
    assert_eq!(weir.get("/").await.status, 200);
    let waiting = weir.begin(3, "/");
    weir.wait_for_waiting(3).await;
    weir.sigterm();
    for answer in client::answers(waiting).await {
        assert_eq!((answer.status, answer.weir_error()), (503, Some("draining")), "{}", answer.text());
        assert_eq!(answer.json()["code"], "draining");
    }
    weir.wait_exit(PATIENCE).await;
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_second_signal_ends_weir_at_once() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let _gate = upstream.hold("/slow");
    for signal in [Signal::TERM, Signal::INT] {
        let mut weir = Weir::start(&one_limiter("memory", LIMITER, &upstream)).await;
        let before = upstream.count();
        let _in_flight = weir.begin(1, "/slow");
        upstream.wait_for(before + 1, PATIENCE).await;
        weir.sigterm();
        eventually("/readyz to say so", async || weir.ask("/readyz").await.status == 503).await;
        // The first second of them counts as the first signal.
        let ending = Instant::now();
        let status = poll_for("its end", async || {
            weir.signal(signal);
            weir.try_exit()
        });
        assert_eq!(status.await.code(), Some(1));
        assert!(ending.elapsed() < PATIENCE);
        assert!(weir.log().contains("a second signal came"), "{}", weir.log());
    }
}

#[tokio::test]
async fn signals_in_quick_succession_are_one() {
    let _lane = lane::shared().await;
    let busy = Busy::start().await;
    busy.weir.sigterm();
    busy.weir.signal(Signal::INT);
    eventually("/readyz to say so", async || busy.weir.ask("/readyz").await.status == 503).await;
    busy.ends_well().await;
}

#[tokio::test]
async fn signals_to_open_logs_anew_are_ignored() {
    let _lane = lane::shared().await;
    let busy = Busy::start().await;
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        busy.weir.signal(signal);
        busy.weir.wait_for_log(&["logs go to standard error", name]).await;
    }
    busy.weir.sigterm();
    busy.ends_well().await;
}

/// The answered requests of a client, and what went wrong.
#[derive(Default)]
struct Told {
    answered: usize,
    unanswered: Vec<String>,
}

impl Told {
    fn note<T>(&mut self, answer: Result<T, Error>) -> Option<T> {
        match answer {
            Ok(answer) => {
                self.answered += 1;
                Some(answer)
            }
            Err(error) => {
                self.unanswered.push(error.to_string());
                None
            }
        }
    }
}

/// Sends each request on a connection of its own, until no connection is accepted.
async fn ask_on_fresh_connections(host: String) -> Told {
    let mut told = Told::default();
    while let Ok(mut connection) = Connection::open(&host).await {
        let answer = async {
            connection.send(&Request::get("/")).await?;
            connection.answer().await
        };
        told.note(answer.await);
    }
    told
}

/// Sends requests on one connection, each at once behind the answer, until an answer says that it is the last.
async fn ask_on_a_kept_connection(host: String) -> Told {
    /// Half of the time for which weir leaves idle connections open: a client that is held up for longer proves nothing.
    const IDLE_MAX: Duration = Duration::from_millis(500);
    let mut told = Told::default();
    let mut connection = Connection::open(&host).await.unwrap();
    loop {
        let idle_since = Instant::now();
        let sent = connection.send(&Request::get("/")).await;
        let was_held_up = idle_since.elapsed() > IDLE_MAX;
        let answer = match sent {
            Ok(_) => connection.answer().await,
            Err(error) => Err(error),
        };
        if was_held_up && answer.is_err() {
            return told;
        }
        match told.note(answer) {
            Some(answer) if answer.header("connection") != Some("close") => {}
            _ => return told,
        }
    }
}

#[tokio::test]
async fn every_accepted_connection_is_answered_at_sigterm() {
    const ROUNDS: usize = 5;
    const CLIENTS: usize = 24;
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    for round in 0..ROUNDS {
        let mut weir = Weir::start(&one_route(&upstream.url())).await;
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(ask_on_fresh_connections(weir.host()));
            clients.spawn(ask_on_a_kept_connection(weir.host()));
        }
        upstream.wait_for(upstream.count() + 20 * CLIENTS, PATIENCE).await;
        weir.sigterm();
        for Told { answered, unanswered } in clients.join_all().await {
            assert_eq!(unanswered, [""; 0], "of {} requests, in round {round}", answered + unanswered.len());
        }
        assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
    }
}

#[tokio::test]
async fn a_connection_without_a_request_gets_its_first_one_answered() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let mut weir = Weir::start(&one_route(&upstream.url())).await;
    let (mut silent, mut begun) = (weir.connect().await, weir.connect().await);
    begun.send_raw(b"GET / HT").await.unwrap();
    let mut idle = weir.connect().await;
    idle.ask(&Request::get("/")).await;
    let mut http2 = Http2::over(TcpStream::connect(weir.host()).await.unwrap());
    weir.sigterm();
    eventually("a closed door", async || Connection::open(&weir.host()).await.is_err()).await;

    begun.send_raw(b"TP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    for answer in [begun.answer().await.unwrap(), silent.ask(&Request::get("/")).await] {
        assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    }
    http2.shake_hands().await;
    http2.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &request(GET))).await;
    let (mut answered, mut dismissed) = (false, false);
    while !(answered && dismissed) {
        match http2.next().await {
            Event::Frame { kind: HEADERS, stream: 1, .. } => answered = true,
            farewell @ Event::Frame { kind: GOAWAY, .. } => dismissed = farewell.code() == Some(0),
            Event::Frame { .. } => {}
            other => panic!("answered: {answered}, GOAWAY: {dismissed}, then {other:?}"),
        }
    }
    assert!(idle.answer().await.is_err(), "it is closed after a while");
    drop(http2);
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

#[tokio::test]
async fn silent_connections_do_not_spoil_a_drain() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    let config = format!("server: {{drain_timeout: 500ms}}\n{}", one_route(&upstream.url()));
    let mut weir = Weir::start(&config).await;
    let _silent = weir.connect().await;
    weir.sigterm();
    assert_eq!(weir.wait_exit(PATIENCE).await.code(), Some(0));
}

/// A pipe without content is as a mount that hangs.
#[tokio::test]
async fn a_signal_ends_a_start_that_hangs() {
    let _lane = lane::shared().await;
    let config = HeldFile::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let mut starting = command.args(["serve", "--config"]).arg(config.path()).spawn().expect("it runs");
    let _reading = config.reading().await;
    kill_process(Pid::from_child(&starting), Signal::TERM).expect("it runs");
    let status = poll_for("its end", async || starting.try_wait().expect("a child")).await;
    assert_eq!(status.code(), Some(0));
}
