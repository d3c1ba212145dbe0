//! Pauses that only one replica knows, because the store does not answer, on paused time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::limiter::model::{Limiter, LimiterName, OnStoreFailure, PausePolicy, Reason};
use crate::limiter::tests::limiter_set;
use crate::limiter::tests::limiter_set::{Fleet, enter, fleet, granted, limiter, pass};
use crate::limiter::{
    Applied, AskedPause, Entered, Inspection, LimiterSet, PauseState, Refusal, UpstreamSignal,
};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a store may be silent before it counts as away, and than a replica takes to tell it of a pause.
const A_WHILE: Duration = Duration::from_millis(700);

fn found(fleet: &Fleet) -> Inspection {
    fleet.limiters.find(&LimiterName::parse("api").unwrap(), None).unwrap()
}

async fn shown(fleet: &Fleet) -> Option<PauseState> {
    found(fleet).inspect().await.pause
}

async fn act(fleet: &Fleet, lasting: Duration) -> bool {
    let applied = found(fleet).pause(lasting).await.unwrap();
    matches!(applied, Applied::ThisReplica(_))
}

/// Returns a fleet whose store is away, with `on_store_failure: local`.
async fn without_store() -> Fleet {
    let pause = PausePolicy { max: 600 * SECOND, guess_first: SECOND, guess_max: 600 * SECOND };
    let api = Limiter { pause: Some(pause), ..limiter("api", 20, 5) };
    let fleet = fleet(&[api], Duration::ZERO, SECOND);
    granted(&limiter_set(&fleet.limiters, &["api"]), &[]).await.commit();
    fleet.set_away(true);
    sleep(A_WHILE).await;
    fleet
}

#[tokio::test(start_paused = true)]
async fn a_pause_without_a_store_holds_here_and_is_shown() {
    let fleet = without_store().await;
    let set = limiter_set(&fleet.limiters, &["api"]);
    assert!(act(&fleet, 3 * SECOND).await);
    let pause = shown(&fleet).await.unwrap();
    assert!(pause.is_local && pause.cause.is_some_and(|cause| cause.reason == Reason::ByHand), "{pause:?}");
    fleet.limiters.refresh_metrics();
    assert!(fleet.shows(r#"weir_limiter_paused{limiter="api"} 1"#));
    let start = Instant::now();
    let Ok(Entered::Waiting(ticket)) = enter(&set, &[]).await else { panic!("it waits") };
    ticket.turn().await.unwrap().commit();
    assert!(start.elapsed() >= 2900 * Duration::from_millis(1), "{:?}", start.elapsed());
    // A longer one is refused at once.
    assert!(act(&fleet, 60 * SECOND).await);
    assert!(matches!(enter(&set, &[]).await, Err(Refusal::Paused { .. })));
    assert!(act(&fleet, Duration::ZERO).await);
    assert_eq!(shown(&fleet).await, None);
    granted(&set, &[]).await.commit();
    fleet.limiters.refresh_metrics();
    assert!(fleet.shows(r#"weir_limiter_paused{limiter="api"} 0"#));
}

#[tokio::test(start_paused = true)]
async fn the_store_is_told_of_a_pause_when_it_is_back() {
    let fleet = without_store().await;
    let limiters = fleet.limiters.clone();
    let keeping = tokio::spawn(async move { limiters.keep().await });
    assert!(act(&fleet, 60 * SECOND).await);
    fleet.set_away(false);
    sleep(A_WHILE).await;
    let pause = shown(&fleet).await.unwrap();
    assert!(!pause.is_local && pause.left > 50 * SECOND, "{pause:?}");
    // It is in the store, and not in this replica alone.
    assert!(!act(&fleet, Duration::ZERO).await);
    assert_eq!(shown(&fleet).await, None);
    keeping.abort();
}

/// The store has carried out the report of the pause before, and is heard later.
#[tokio::test(start_paused = true)]
async fn a_late_answer_to_the_report_of_a_pause_does_not_undo_a_resume() {
    let fleet = without_store().await;
    let limiters = fleet.limiters.clone();
    let keeping = tokio::spawn(async move { limiters.keep().await });
    assert!(act(&fleet, 600 * SECOND).await);
    fleet.set_late_by(SECOND / 2);
    fleet.set_away(false);
    sleep(SECOND / 4).await;
    fleet.set_late_by(Duration::ZERO);
    assert!(!act(&fleet, Duration::ZERO).await, "the store has it");
    sleep(SECOND).await;
    assert_eq!(shown(&fleet).await, None);
    fleet.set_away(true);
    sleep(A_WHILE).await;
    let set = limiter_set(&fleet.limiters, &["api"]);
    timeout(SECOND, pass(&set, &[])).await.expect("nothing pauses it").unwrap();
    keeping.abort();
}

#[tokio::test(start_paused = true)]
async fn an_older_pause_of_the_store_does_not_undo_a_resume() {
    let fleet = fleet(&[limiter("api", 20, 5)], Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &["api"]);
    granted(&set, &[]).await.commit();
    assert!(!act(&fleet, 600 * SECOND).await, "the store has it");
    fleet.set_away(true);
    sleep(A_WHILE).await;
    let pause = shown(&fleet).await.unwrap();
    assert!(!pause.is_local, "all replicas know it: {pause:?}");
    assert!(act(&fleet, Duration::ZERO).await);
    // Without a heartbeat it looks as if the replica had stood still: it asks the store first.
    pass(&set, &[]).await.unwrap();
    fleet.set_away(false);
    // The first call tells the store before it asks for a slot.
    sleep(SECOND).await;
    pass(&set, &[]).await.unwrap();
    assert_eq!(shown(&fleet).await, None);
}

#[tokio::test(start_paused = true)]
async fn an_upstreams_pause_without_a_store_can_be_ended() {
    let fleet = without_store().await;
    let set = limiter_set(&fleet.limiters, &["api"]);
    let receipt = granted(&set, &[]).await.commit().unwrap();
    let asked = AskedPause { status: 429, wait: Some(60 * SECOND) };
    let pauses = vec![(LimiterName::parse("api").unwrap(), asked)];
    set.report_upstream(&[], &receipt, UpstreamSignal { is_rejection: true, pauses, windows: Vec::new() });
    sleep(SECOND).await;
    let pause = shown(&fleet).await.unwrap();
    assert!(pause.is_local && pause.left > 50 * SECOND, "{pause:?}");
    assert!(matches!(enter(&set, &[]).await, Err(Refusal::Paused { .. })));
    assert!(act(&fleet, Duration::ZERO).await);
    assert_eq!(shown(&fleet).await, None);
    granted(&set, &[]).await.commit();
}

/// Requests that wait for both would lose their order otherwise.
#[tokio::test(start_paused = true)]
async fn a_rejection_pauses_the_limiters_of_a_request_until_one_instant() {
    let names = ["api", "other"];
    let pause = PausePolicy { max: 600 * SECOND, guess_first: SECOND, guess_max: 600 * SECOND };
    let both = names.map(|name| Limiter { pause: Some(pause.clone()), ..limiter(name, 20, 5) });
    let fleet = fleet(&both, Duration::ZERO, SECOND);
    let set = limiter_set(&fleet.limiters, &names);
    let receipt = granted(&set, &[]).await.commit().unwrap();
    let asked = AskedPause { status: 429, wait: Some(60 * SECOND) };
    let pauses = names.map(|name| (LimiterName::parse(name).unwrap(), asked)).to_vec();
    set.report_upstream(&[], &receipt, UpstreamSignal { is_rejection: true, pauses, windows: Vec::new() });
    sleep(SECOND).await;
    let mut left = Vec::new();
    for name in names {
        let inspection = fleet.limiters.find(&LimiterName::parse(name).unwrap(), None).unwrap();
        left.push(inspection.inspect().await.pause.expect("a pause").left);
    }
    assert!(left[0] > 58 * SECOND && left[0] == left[1], "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_made_during_a_pause_keeps_to_it() {
    let api = Limiter { on_store_failure: OnStoreFailure::Allow, ..limiter("api", 20, 5) };
    let fleet = fleet(&[api], Duration::ZERO, SECOND);
    fleet.set_away(true);
    assert!(act(&fleet, 3 * SECOND).await);
    sleep(A_WHILE).await;
    let (set, start) = (limiter_set(&fleet.limiters, &["api"]), Instant::now());
    let mut permit = match enter(&set, &[]).await.unwrap() {
        Entered::Granted(permit) => permit,
        Entered::Waiting(ticket) => ticket.turn().await.unwrap(),
    };
    permit.confirm().await.unwrap();
    permit.commit();
    assert!(start.elapsed() > SECOND, "{:?}", start.elapsed());
}

/// Its permit was taken back because of the pause, and it waits for another.
#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_while_its_permit_is_exchanged_waits_no_more() {
    let fleet = fleet(&[limiter("api", 20, 5)], Duration::ZERO, SECOND);
    let mut permit = granted(&limiter_set(&fleet.limiters, &["api"]), &[]).await;
    // It comes too late for its slot, and in a pause.
    sleep(SECOND).await;
    found(&fleet).pause(3 * SECOND).await.unwrap();
    let waiting = async || found(&fleet).inspect().await.waiting;
    {
        let mut confirmed = Box::pin(permit.confirm());
        assert!(timeout(SECOND / 10, &mut confirmed).await.is_err());
        assert_eq!(waiting().await, 1);
    }
    sleep(SECOND / 10).await;
    assert_eq!(waiting().await, 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_without_a_store_keep_to_a_pause_and_to_its_end() {
    // The time before each action, and how long it pauses.
    let actions: [&[(u64, u64)]; 6] = [
        &[(250, 0)],
        &[(250, 700)],
        &[(250, 1500)],
        &[(250, 600), (300, 900)],
        &[(250, 1500), (500, 0)],
        &[(250, 3000), (500, 0)],
    ];
    for actions in actions {
        let fleet = without_store().await;
        let set = limiter_set(&fleet.limiters, &["api"]);
        let ask = |count: usize| -> Vec<_> {
            let one = |set: LimiterSet| async move { pass(&set, &[]).await };
            (0..count).map(|_| tokio::spawn(one(set.clone()))).collect()
        };
        let mut asked = ask(60);
        for (before, lasting) in actions {
            sleep(Duration::from_millis(*before)).await;
            assert!(act(&fleet, Duration::from_millis(*lasting)).await);
        }
        asked.extend(ask(30));
        let mut passed = Vec::new();
        for one in asked {
            passed.extend(one.await.unwrap());
        }
        passed.sort();
        assert!(passed.len() >= 75, "{actions:?}: {}", passed.len());
        for (first, next) in passed.iter().zip(&passed[20..]) {
            let apart = *next - *first;
            assert!(apart >= SECOND - Duration::from_millis(1), "{actions:?}: {apart:?}");
        }
    }
}
