//! The oracle is quick: it must not slow the simulation.

use std::time::Instant;

use super::{Court, Event, LimiterModel, S, STATE, State, limiter, sliding};

#[test]
#[ignore = "measures: run with --ignored --nocapture"]
fn a_hundred_thousand_events_a_second() {
    let model = LimiterModel {
        max_waiting: 1_000_000,
        ..limiter(&[sliding(40_000, 2 * S), sliding(300_000, 20 * S)])
    };
    let mut court = Court::new(&[model]);
    let started = Instant::now();
    let mut events = 0_u64;
    for number in 0..400_000_u64 {
        let at = number * 20;
        let state = State { partition: Some(number % 20), ..STATE };
        let request = court.arrive_at(at, 0, &[state], 1, None);
        court.wait(at, request);
        if let Some(earlier) = number.checked_sub(5_000) {
            if number % 3 == 0 {
                court.send(at, earlier + 1);
            } else {
                court.see(at, &Event::Left { request: earlier + 1 });
            }
        }
        events += 3;
    }
    let rate = f64::from(u32::try_from(events).expect("few")) / started.elapsed().as_secs_f64();
    println!("{rate:.0} events a second, {} findings", court.found.len());
    assert!(rate > 100_000.0);
}
