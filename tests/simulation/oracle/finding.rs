//! Findings, each told once per cause.

use std::collections::BTreeMap;

/// The kind of a finding. Its two numbers are named in brackets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum What {
    /// A window holds more than its limit (permits in it; permits allowed).
    Over,
    /// As [`What::Over`], where the store had lost its memory and no replica lived that knew what was granted before: nobody can promise more.
    Forgotten,
    /// Many windows together hold more than their limit, as what responses had cost beyond their estimates was not left out (permits in
    /// them; permits allowed).
    Unpaid,
    /// A request waited beyond its wait (microseconds; microseconds).
    Waited,
    /// More requests wait in one queue than may (requests; requests).
    TooManyWaiting,
    /// A waiting request was sent before one that came earlier (instants of arrival of both).
    Order,
    /// Less was sent in ten calm seconds than there was room for (permits; permits that fit).
    Unused,
    /// The rate had not come back in time after a fault (permits; permits that fit).
    NotBack,
    /// A request was refused while the limit had room (permits in use with its own; permits allowed).
    RefusedWithRoom,
    /// A request was refused for a full queue while fewer waited there than may (requests; requests).
    RefusedWithPlaces,
    /// A request was refused for want of the store while nothing was wrong with it (microseconds that it waited; microseconds that
    /// it might).
    Unavailable,
    /// Requests were never answered (requests; 0).
    Leaked,
    /// A script call kept the store from all others for too long (instructions of Lua; instructions allowed).
    Heavy,
}

/// A fault of weir's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    /// The instant at which it was found.
    pub(crate) at: u64,
    /// The kind.
    pub(crate) what: What,
    /// The limiter.
    pub(crate) limiter: String,
    /// The number that there was.
    pub(crate) sent: u64,
    /// The number that there may be.
    pub(crate) limit: u64,
    /// More, for people.
    pub(crate) detail: String,
}

/// A limiter as findings name it.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    /// Its number.
    pub(crate) id: u32,
    /// Its name.
    pub(crate) name: &'a str,
    /// The time within which findings of one kind count as one.
    pub(crate) window: u64,
}

/// Two numbers that are not as they should be, and more for people.
pub(crate) struct Evidence {
    /// The number that there was.
    pub(crate) sent: u64,
    /// The number that there may be.
    pub(crate) limit: u64,
    /// More, for people.
    pub(crate) detail: String,
}

impl Evidence {
    /// Returns how far it is from what may be.
    fn distance(&self) -> u64 {
        self.sent.abs_diff(self.limit)
    }
}

/// The findings, and how often each check had something to decide.
#[derive(Default)]
pub(crate) struct Reports {
    fresh: Vec<Finding>,
    told: BTreeMap<(What, u32), u64>,
    worst: BTreeMap<(What, u32), Finding>,
    judged: BTreeMap<What, u64>,
    repeated: u64,
}

impl Reports {
    /// Counts a decision, and takes a finding if it went against weir. A finding of the same kind within a window is the
    /// same cause.
    pub(crate) fn judge(&mut self, at: u64, what: What, limiter: Named<'_>, evidence: Option<Evidence>) {
        *self.judged.entry(what).or_default() += 1;
        let Some(evidence) = evidence else { return };
        let key = (what, limiter.id);
        let is_repeated = self.told.get(&key).is_some_and(|told| at < told.saturating_add(limiter.window));
        let is_worse =
            self.worst.get(&key).is_none_or(|worst| evidence.distance() > worst.sent.abs_diff(worst.limit));
        let Evidence { sent, limit, detail } = evidence;
        let finding = Finding { at, what, limiter: limiter.name.to_owned(), sent, limit, detail };
        if is_worse {
            self.worst.insert(key, finding.clone());
        }
        if is_repeated {
            self.repeated += 1;
        } else {
            self.told.insert(key, at);
            self.fresh.push(finding);
        }
    }

    /// Returns the findings since the last call.
    pub(crate) fn take(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.fresh)
    }

    /// Returns the worst finding of each kind and limiter.
    pub(crate) fn worst(&self) -> Vec<Finding> {
        self.worst.values().cloned().collect()
    }

    /// Returns how often each check had something to decide.
    pub(crate) fn judged(&self) -> BTreeMap<What, u64> {
        self.judged.clone()
    }

    /// Returns the number of findings that were taken for the same cause as one before.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeated
    }
}
