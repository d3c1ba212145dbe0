//! Knowledge of what a store granted before it lost its memory, and its loss.

use super::{S, Witnesses};

/// Returns the witnesses of two replicas that have heard the store for ten seconds.
fn two() -> Witnesses {
    let mut witnesses = Witnesses::default();
    witnesses.started(0, 0);
    witnesses.started(0, 1);
    witnesses
}

#[test]
fn one_that_lives_on_knows_what_was_granted() {
    let mut witnesses = two();
    witnesses.gone(10 * S, 0);
    witnesses.lost(10 * S);
    witnesses.started(11 * S, 0);
    witnesses.gone(12 * S, 1);
    assert!(!witnesses.forgot_since(0), "it has told the store for a second");
}

#[test]
fn grants_are_forgotten_once_the_last_replica_that_knew_them_ends() {
    let mut witnesses = two();
    witnesses.lost(10 * S);
    witnesses.gone(10 * S, 0);
    assert!(!witnesses.forgot_since(0));
    witnesses.gone(11 * S, 1);
    assert!(witnesses.forgot_since(11 * S) && !witnesses.forgot_since(11 * S + 1));
}

#[test]
fn a_replica_that_joined_lately_knows_too_little() {
    let mut witnesses = two();
    witnesses.gone(10 * S, 0);
    witnesses.started(10 * S, 2);
    witnesses.gone(10 * S + S / 10, 1);
    witnesses.lost(10 * S + S / 10);
    assert!(witnesses.forgot_since(10 * S));
}

#[test]
fn a_replica_that_replaces_others_in_an_outage_knows_nothing() {
    let mut witnesses = two();
    witnesses.away(10 * S);
    witnesses.lost(11 * S);
    witnesses.started(12 * S, 2);
    witnesses.gone(13 * S, 0);
    assert!(!witnesses.forgot_since(0), "one may tell the store when it is back");
    witnesses.gone(14 * S, 1);
    assert!(witnesses.forgot_since(14 * S));
}

#[test]
fn an_outage_that_keeps_the_memory_forgets_nothing() {
    let mut witnesses = two();
    witnesses.away(10 * S);
    witnesses.gone(11 * S, 0);
    witnesses.gone(11 * S, 1);
    witnesses.started(12 * S, 2);
    witnesses.back(13 * S);
    assert!(!witnesses.forgot_since(0));
    witnesses.lost(14 * S);
    assert!(!witnesses.forgot_since(0), "it has heard the store for a second");
}
