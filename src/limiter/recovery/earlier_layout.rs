//! The upgrade from the layout of keys before this one: a store that is shared with replicas of it keeps each state in both layouts.
//! The store does so in each call; here it is told to do so for the states that nobody calls for.
//!
//! A replica of the earlier layout that starts begins an epoch of its layout, which settles for half a second. By then each replica of
//! this layout has had a heartbeat, has heard of that epoch, and has had all states written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tracing::info;

use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Limiter, LimiterName};
use crate::limiter::store::{Store, StoreError};

/// The limiters of one part of a store, and the epoch of the earlier layout that it was told of.
#[derive(Default)]
pub(in crate::limiter) struct EarlierLayout {
    /// The limiters whose states live there, with their groups.
    limiters: Mutex<BTreeMap<LimiterName, Weak<str>>>,
    /// The epoch of the earlier layout for which all states were written; zero: there is none.
    written: AtomicU64,
}

impl EarlierLayout {
    /// Notes a limiter whose state lives in that part of a store.
    pub(in crate::limiter) fn serve(&self, limiter: &Limiter) {
        let mut limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        limiters.retain(|_, group| group.strong_count() > 0);
        limiters.insert(limiter.name.clone(), Arc::downgrade(&limiter.group));
    }

    /// Returns the limiters as a whole, without rules.
    fn limiter_refs(&self) -> Vec<LimiterRef> {
        let limiters = self.limiters.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(name, group): (&LimiterName, &Weak<str>)| {
            let (name, group) = (name.clone(), group.upgrade()?);
            Some(LimiterRef { name, partition: None, group, rules: [].into(), valid_until: None })
        };
        limiters.iter().filter_map(of).collect()
    }

    /// Takes in the epoch of the earlier layout, as a heartbeat was answered. Has all states written if it is new.
    ///
    /// # Errors
    /// The first failed call. The next heartbeat tries again.
    pub(in crate::limiter) async fn follow(&self, store: &dyn Store, epoch: u64) -> Result<(), StoreError> {
        let written = self.written.load(Ordering::Acquire);
        if epoch == written {
            return Ok(());
        }
        if epoch == 0 {
            info!("no replica of an earlier version shares the store any more");
        } else {
            info!(
                epoch,
                "replicas of an earlier version may share the store: each state is kept for them, too"
            );
            store.hand_over(&self.limiter_refs()).await?;
        }
        self.written.store(epoch, Ordering::Release);
        Ok(())
    }
}
