//! The session, as all workers see it.

use super::*;

#[tokio::test(start_paused = true)]
async fn slots_are_usable_in_the_epoch_of_the_link_alone() {
    let stage = Stage::settled().await;
    let is_settling = || stage.session.advance(stage.session.moment()).link.is_settling();
    assert!(stage.session.is_usable(3) && !stage.session.is_usable(2) && !stage.session.is_usable(4));
    assert!(!is_settling());
    let now = stage.store.clock.now();
    let settles_until = Some(now + Micros::from_millis(500));
    let is_lost = stage.session.observe_epoch(Epoch { now, id: 4, settles_until, ..Epoch::default() });
    assert!(is_lost && is_settling() && !stage.session.is_usable(3) && !stage.session.is_usable(4));
    assert!(!stage.session.observe_epoch(Epoch { now, id: 4, settles_until, ..Epoch::default() }));
    assert_eq!((stage.session.epoch(), stage.session.epoch_least()), (4, 4));
    pass(502).await;
    assert!(!is_settling() && stage.session.is_usable(4));
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_moves_what_was_granted() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    pass(10).await;
    let (sent, now) = (stage.session.moment(), stage.store.clock.now());
    let stepped = Epoch { now: now + Micros::from_millis(5000), id: 3, memory: 3, ..Epoch::default() };
    assert!(!stage.session.answered(sent, stepped));
    assert_eq!(stage.session.epoch_least(), 4, "a new epoch is required");
    let since = now + Micros::from_millis(4000);
    assert_eq!(stage.session.ledger().granted_since(&a, since), 4);
}

#[tokio::test(start_paused = true)]
async fn a_charge_told_by_a_stepped_clock_moves_with_what_was_granted() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    pass(10).await;
    let (sent, now) = (stage.session.moment(), stage.store.clock.now());
    assert_eq!(stage.session.on_known_clock(now), now);
    for by_millis in [-3_000_000, 3_000_000] {
        let told = Micros(now.0.saturating_add_signed(1000 * by_millis));
        stage.session.ledger().charge(&a, stage.session.on_known_clock(told), 1);
    }
    let stepped = Epoch { now: now + Micros::from_millis(3_000_000), id: 3, memory: 3, ..Epoch::default() };
    stage.session.answered(sent, stepped);
    let since = stepped.now - Micros::from_millis(100);
    assert_eq!(stage.session.ledger().granted_since(&a, since), 4 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_no_later_than_its_length_from_now() {
    let stage = Stage::new();
    let stretch = |from: Micros, until: Micros| PauseStretch { from, until };
    assert_eq!(stage.session.moments(stretch(Micros(1), Micros(2))), None, "the store's clock is not known");
    stage.begin(3, 3);
    stage.beats().await.unwrap();
    let (shown, now) = (stage.store.clock.now(), stage.session.moment());
    let second = Micros::from_millis(1000);
    let (from, until) = stage.session.moments(stretch(shown - second, shown + second)).unwrap();
    assert!(from <= now && until > now && until <= now + second + Micros(300), "{from:?} {until:?}");
    // By a clock that was stepped back it seems to be far ahead.
    let ahead = shown + Micros::from_millis(3_600_000);
    assert_eq!(stage.session.moments(stretch(ahead, ahead + second)), Some((now, now + second)));
    let (_, until) = stage.session.moments(stretch(shown, shown - second)).unwrap();
    assert!(until <= now + Micros(300), "one that ends before it begins has ended: {until:?}");
}

/// A replica may tell the store of a pause minutes later: of two actions the later one counts, whenever they are heard.
#[tokio::test(start_paused = true)]
async fn a_pause_from_before_the_last_answer_has_begun_before_it() {
    let stage = Stage::new();
    stage.begin(3, 3);
    pass(10_000).await;
    stage.beats().await.unwrap();
    let (shown, now, second) = (stage.store.clock.now(), stage.session.moment(), Micros::from_millis(1000));
    let seconds = |count: u64| Micros(count * second.0);
    let moments = |from, until| stage.session.moments(PauseStretch { from, until });
    let (from, until) = moments(shown - seconds(5), shown + seconds(60)).unwrap();
    assert_eq!(from, now - seconds(5));
    assert!(until > now + seconds(59), "{until:?}");
    // Over, and lifted.
    assert_eq!(moments(shown - seconds(5), shown - seconds(2)), Some((now - seconds(5), now - seconds(2))));
    assert_eq!(moments(shown - seconds(5), Micros::ZERO), Some((now - seconds(5), now - seconds(5))));
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_followed_once() {
    let (stage, (_, a)) = (Stage::settled().await, any_limiter());
    stage.grant(&a, 4);
    stage.fallback.store.reserve_now(
        std::slice::from_ref(&a),
        &Call {
            generations: vec![0],
            runs: vec![Run { cost: 1, wait_max: Micros::ZERO, count: 10 }],
            ..Call::default()
        },
    );
    pass(100).await;
    stage.grant(&a, 1);
    let since = Micros::ZERO;
    assert_eq!(stage.session.ledger().granted_since(&a, since), 5);
    // By the store's clock, between the two.
    let at = stage.store.clock.now() - Micros::from_millis(50);
    let reset = Reset { name: a.name.clone(), partition: None, at };
    stage.change(|script| script.answer.resets = vec![reset.clone()]);
    stage.beats().await.unwrap();
    assert_eq!(stage.session.ledger().granted_since(&a, since), 1);
    let left = stage.fallback.store.inspect_at(stage.store.clock.now(), &a);
    assert_eq!(left.available, [10], "this replica's own memory follows, too");
    stage.grant(&a, 2);
    stage.beats().await.unwrap();
    assert_eq!(stage.session.ledger().granted_since(&a, since), 3, "the same one again");
    // One of an epoch that is over is at an instant of another clock.
    stage.begin(2, 2);
    let later = Reset { at: stage.store.clock.now() + Micros::from_millis(1), ..reset };
    stage.change(|script| script.answer.resets = vec![later]);
    stage.beats().await.unwrap();
    assert_eq!(stage.session.ledger().granted_since(&a, since), 3);
}

#[tokio::test(start_paused = true)]
async fn an_answered_call_is_what_a_heartbeat_says_was_heard() {
    let stage = Stage::settled().await;
    let now = stage.store.clock.now() + Micros(7);
    let epoch = Epoch { now, id: 3, memory: 3, ..Epoch::default() };
    stage.session.on(SessionEvent::Answered { sent: stage.session.moment(), epoch }, stage.session.moment());
    stage.beats().await.unwrap();
    assert_eq!(stage.told().0[0].heard, now);
}
