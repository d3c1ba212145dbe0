//! Resets of limiters whose grants are on their way to the store.

use super::*;

/// The store may have had them all along, and the answer was lost.
#[test]
fn a_reset_takes_what_an_outage_granted_though_it_is_written_back_behind_it() {
    let (mut ledger, a) = (Ledger::default(), limiter_ref("a", 60));
    let refs = std::slice::from_ref(&a);
    ledger.record_offline(at(0), &[part_of(&a)], &[(at(0), 1), (at(400), 2)]);
    let part = ledger.next_unreported(&a, at(100)).unwrap();
    ledger.reset(&Reset { name: a.name.clone(), partition: None, at: at(300) }, at(300));
    // The same part is sent again, and confirmed.
    ledger.confirm_report(&a, &part, at(500), at(500));
    assert_eq!(ledger.granted_since(&a, at(0)), 2, "what was granted behind it");
    assert!(!ledger.lacks(refs));
}
