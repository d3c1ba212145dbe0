//! Memory, reloads that take limiters away, and events that make no sense.

use super::{Court, Event, FLUSH, LimiterModel, S, STATE, State, What, limiter, sliding};

#[test]
fn old_states_are_forgotten() {
    let mut court = Court::new(&[limiter(&[sliding(1000, S)])]);
    for second in 0..200 {
        let state = State { partition: Some(second), ..STATE };
        let request = court.arrive_at(second * S, 0, &[state], 1, None);
        court.send(second * S, request);
        let id = second;
        court.see(second * S, &Event::FaultBegins { fault: id, kind: FLUSH });
        court.see(second * S, &Event::FaultEnds { fault: id });
    }
    assert!(court.oracle.states.len() < 50, "{} states", court.oracle.states.len());
    assert_eq!(court.whats(), []);
}

#[test]
fn a_limiter_that_is_no_more_judges_nothing() {
    let other = LimiterModel { id: 1, ..limiter(&[sliding(1, S)]) };
    let mut court = Court::new(&[limiter(&[sliding(1, S)]), other.clone()]);
    let request = court.arrive(0, 1);
    court.configure(1, &[other]);
    court.send(1, request);
    (0..9).for_each(|_| court.pass(2, 1));
    assert_eq!(court.whats(), []);
    court.configure(5 * S, &[limiter(&[sliding(1, S)])]);
    court.turn_away(5 * S + 900_000, 1);
    assert_eq!(court.whats(), [], "what weir remembers of it is not known");
    (0..2).for_each(|_| court.pass(7 * S, 1));
    assert_eq!(court.whats(), [What::Over]);
}

#[test]
fn senseless_events_are_counted() {
    let mut court = Court::new(&[limiter(&[sliding(1, S)])]);
    court.send(5, 99);
    court.wait(5, 99);
    court.see(5, &Event::FaultEnds { fault: 3 });
    court.pass(4, 1);
    assert_eq!(court.oracle.summary().senseless, 5);
    assert_eq!(court.whats(), []);
}
