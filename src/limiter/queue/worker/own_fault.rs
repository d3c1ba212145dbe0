//! A fault of one queue's calls alone: what the store is to that queue then.

use crate::clock::{Micros, Moment};
use crate::limiter::recovery::link::{Link, Terms};

/// How long an outage of one queue alone lasts until the store is asked again.
const RETRIED_AFTER: Micros = Micros::from_millis(5000);

/// Calls of one queue that the store answers with an error of their own, such as a key that holds something foreign, while others
/// are all right.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::limiter) struct OwnFault {
    /// When the first such call since the last good one was sent.
    since: Option<Moment>,
    /// The number of outages of this queue alone.
    outages: u64,
}

impl OwnFault {
    /// Takes in a call that failed for this queue alone.
    pub(in crate::limiter) fn failed(&mut self, sent: Moment) {
        if self.since.is_none() {
            self.since = Some(sent);
            self.outages += 1;
        }
    }

    /// Takes in a good answer.
    pub(in crate::limiter) fn answered(&mut self) {
        self.since = None;
    }

    /// Forgets a fault that has lasted for some time: a queue that asks nobody in an outage would never learn that it is over. The next call
    /// shows it.
    pub(in crate::limiter) fn lapse(&mut self, terms: &Terms, now: Moment) {
        self.since.take_if(|since| now >= *since + terms.away_after + RETRIED_AFTER);
    }

    /// Returns when the outage of this queue alone began; `None` if there is none.
    pub(in crate::limiter) fn away_since(&self, terms: &Terms, now: Moment) -> Option<Moment> {
        self.since.map(|since| since + terms.away_after).filter(|began| *began <= now)
    }

    /// Returns what the store is to this queue, where it is `link` to all others.
    pub(in crate::limiter) fn link(&self, link: Link, terms: &Terms, now: Moment) -> Link {
        let (Link::Up { epoch }, Some(since)) = (link, self.since) else { return link };
        let until = since + terms.away_after;
        // Other numbers than those of the session's outages.
        if now >= until {
            Link::Away { outage: u64::MAX - self.outages }
        } else {
            Link::Held { epoch, until }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_one_queue_is_a_doubt_and_then_an_outage_of_its_own() {
        let (mut fault, up) = (OwnFault::default(), Link::Up { epoch: 3 });
        let terms = Terms::new(Micros::from_millis(500), Micros::from_millis(100));
        let at = |millis| Moment(1_000_000) + Micros::from_millis(millis);
        assert_eq!(fault.link(up, &terms, at(0)), up);
        fault.failed(at(0));
        fault.failed(at(300));
        let held = Link::Held { epoch: 3, until: at(595) };
        assert_eq!((fault.link(up, &terms, at(1)), fault.link(up, &terms, at(594))), (held, held));
        assert_eq!(fault.away_since(&terms, at(594)), None);
        assert_eq!(fault.link(up, &terms, at(595)), Link::Away { outage: u64::MAX - 1 });
        assert_eq!(fault.away_since(&terms, at(600)), Some(at(595)));
        // An outage for all goes first.
        let away = Link::Away { outage: 1 };
        assert_eq!(fault.link(away, &terms, at(595)), away);
        fault.answered();
        assert_eq!((fault.link(up, &terms, at(700)), fault.away_since(&terms, at(700))), (up, None));
        fault.failed(at(700));
        fault.lapse(&terms, at(6294));
        assert_eq!(fault.link(up, &terms, at(6294)), Link::Away { outage: u64::MAX - 2 });
        fault.lapse(&terms, at(6295));
        assert_eq!(fault.link(up, &terms, at(6295)), up);
        fault.failed(at(7000));
        assert_eq!(fault.link(up, &terms, at(7600)), Link::Away { outage: u64::MAX - 3 });
    }
}
