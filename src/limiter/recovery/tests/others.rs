//! Replicas of an earlier layout, and the fleet.

use super::*;

#[tokio::test(start_paused = true)]
async fn states_are_handed_over_once_for_each_epoch_of_an_earlier_layout() {
    let (stage, (limiter, a)) = (Stage::settled().await, any_limiter());
    stage.session.earlier_layout.serve(&limiter);
    let gone = Limiter {
        name: crate::limiter::model::LimiterName::parse("gone").unwrap(),
        group: "gone".into(),
        ..Limiter::clone(&limiter)
    };
    stage.session.earlier_layout.serve(&gone);
    drop(gone);
    let handed_over = |stage: &Stage| -> Vec<String> {
        let mut script = stage.store.script.lock().unwrap();
        std::mem::take(&mut script.handed_over).iter().map(|one| one.name.to_string()).collect()
    };
    stage.beats().await.unwrap();
    assert_eq!(handed_over(&stage), Vec::<String>::new());
    for _ in 0..2 {
        stage.change(|script| script.answer.earlier_epoch = 9);
        stage.beats().await.unwrap();
        assert_eq!(handed_over(&stage), [a.name.to_string()], "of those that are in use");
        stage.beats().await.unwrap();
        stage.change(|script| script.answer.earlier_epoch = 0);
        stage.beats().await.unwrap();
        assert_eq!(handed_over(&stage), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn the_fleet_is_who_the_store_listed_last() {
    let (stage, other) = (Stage::new(), Replica { host: "host-2".into(), ..Replica::new(OTHER) });
    let fleet = &stage.fallback.fleet;
    assert_eq!((fleet.assumed(), fleet.listed(), fleet.replicas().len()), (1, vec![], 1));
    let seen_ago = Duration::from_secs(2);
    stage.change(|script| script.replicas = vec![Replica::new(ME), Replica { seen_ago, ..other.clone() }]);
    fleet.register_replica(&*stage.store).await;
    pass(1000).await;
    let replicas = fleet.replicas();
    assert_eq!(replicas.iter().map(|replica| replica.id).collect::<Vec<_>>(), [ME, OTHER]);
    assert_eq!((replicas[1].seen_ago, fleet.listed()), (Duration::from_secs(3), vec![ME, OTHER]));
    assert_eq!((fleet.host_of(OTHER), fleet.host_of(7)), (Some("host-2".into()), None));
    // A failure leaves them as they were; one without a host has no name to show.
    stage.change(|script| (script.is_away, script.replicas) = (true, vec![Replica::new(OTHER)]));
    fleet.register_replica(&*stage.store).await;
    assert_eq!(fleet.listed(), [ME, OTHER]);
    stage.change(|script| script.is_away = false);
    fleet.register_replica(&*stage.store).await;
    assert_eq!((fleet.listed(), fleet.host_of(OTHER)), (vec![OTHER], None));
    fleet.leave(&*stage.store).await;
    let registered = |stage: &Stage| std::mem::take(&mut stage.store.script.lock().unwrap().registered);
    assert_eq!(registered(&stage), [(ME, false), (ME, false), (ME, false), (ME, true)]);
    fleet.configured(&"hash".into());
    assert_eq!(&*fleet.me().configuration, "hash");
    let keeping = async {
        tokio::time::timeout(Duration::from_millis(3900), fleet.keep_registered(&*stage.store)).await
    };
    assert!(keeping.await.is_err());
    assert_eq!(
        registered(&stage).len(),
        4,
        "at once for the new configuration, and each second while it is new"
    );
    let keeping = tokio::time::timeout(MEMBERSHIP_TTL, fleet.keep_registered(&*stage.store));
    assert!(keeping.await.is_err());
    assert!((3..=5).contains(&registered(&stage).len()), "and then each five seconds");
}
