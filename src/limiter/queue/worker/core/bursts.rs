//! How many permits this replica can send at once: learnt from those that it has sent, because nothing else tells.
//!
//! A burst reaches a replica as arrivals that it has still to read, each of which takes the processor as long as a request takes to be
//! sent. So the answer to a call for the first of them is taken in late, and the requests that it wakes come behind the arrivals. Their slots
//! would have passed, and could not be booked again: what follows has been booked by then, by all replicas, as closely as the limit allows.
//! Only where most of the limit is left, they could; so a burst that is small beside what is left is not booked ahead.

use crate::clock::{Micros, Moment};

/// So many permits can be sent at once by any replica.
const FEW: usize = 8;

/// How far ahead more permits are booked than are known to be sent in time: the time to read the rest of a burst.
const LEAD: Micros = Micros::from_millis(20);

/// How long after permits were handed out none of them is late any more, if none has been.
const JUDGED_AFTER: Micros = Micros::from_millis(100);

/// The permits handed out at once.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Bursts {
    /// The most of which none was late.
    sent: usize,
    /// More than those, of which none has been late so far, and when they were handed out.
    tried: Option<(usize, Moment)>,
}

impl Bursts {
    /// Takes in that permits were handed out at once.
    pub(super) fn handed_out(&mut self, permits: usize, now: Moment) {
        if let Some((tried, _)) = self.tried.take_if(|(_, at)| now - *at >= JUDGED_AFTER) {
            self.sent = self.sent.max(tried);
        }
        if permits > self.sent.max(FEW) && self.tried.is_none_or(|(tried, _)| permits > tried) {
            self.tried = Some((permits, now));
        }
    }

    /// Takes in that a permit was late.
    pub(super) fn observe_late(&mut self) {
        *self = Bursts::default();
    }

    /// Returns how far ahead so many permits are booked.
    pub(super) fn lead(&self, permits: usize) -> Micros {
        if permits > self.sent.max(FEW) { LEAD } else { Micros::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_booked_ahead_until_one_as_large_was_sent_in_time() {
        let (mut bursts, start) = (Bursts::default(), Moment(1_000_000));
        assert_eq!((bursts.lead(FEW), bursts.lead(FEW + 1)), (Micros::ZERO, LEAD));
        bursts.handed_out(40, start);
        assert_eq!(bursts.lead(40), LEAD, "one may be late still");
        bursts.handed_out(1, start + JUDGED_AFTER);
        assert_eq!((bursts.lead(40), bursts.lead(41)), (Micros::ZERO, LEAD));
        bursts.handed_out(50, start + JUDGED_AFTER);
        bursts.observe_late();
        bursts.handed_out(1, start + JUDGED_AFTER + JUDGED_AFTER);
        assert_eq!(bursts.lead(FEW + 1), LEAD, "a late one says that less can be sent than was thought");
    }
}
