//! The store of the limiter's tests: a memory store that counts its calls, answers after a latency, and can be away.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::time::sleep;

use crate::clock::{Clock, Micros};
use crate::limiter::arithmetic::limiter_ref::LimiterRef;
use crate::limiter::model::{Answer, Call, Epoch, PauseByHand, ReportResult, UpstreamReport, WriteBack};
use crate::limiter::store::memory::MemoryStore;
use crate::limiter::store::{Failure, StateView, Store, StoreError};

pub(in crate::limiter) struct LatentStore {
    clock: Clock,
    store: MemoryStore,
    calls: AtomicU64,
    is_away: AtomicBool,
    /// True if the store grants everything and keeps nothing.
    is_forgetful: AtomicBool,
    /// True if the key of the limiter holds a foreign value.
    is_unreadable: AtomicBool,
    /// The epoch that the store answers; zero for a store that never loses its state.
    epoch: AtomicU64,
    delay: Duration,
    /// How long after their deadline calls are answered, though they are carried out at once.
    late_by: Mutex<Duration>,
    /// The permits that were written back.
    written_back: AtomicU64,
}

impl LatentStore {
    pub(in crate::limiter) fn new(clock: Clock, delay: Duration) -> Arc<LatentStore> {
        Arc::new(LatentStore {
            clock,
            store: MemoryStore::new(clock),
            calls: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            is_forgetful: AtomicBool::new(false),
            is_unreadable: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            delay,
            late_by: Mutex::default(),
            written_back: AtomicU64::new(0),
        })
    }

    pub(in crate::limiter) fn away(clock: Clock) -> Arc<LatentStore> {
        let store = LatentStore::new(clock, Duration::ZERO);
        store.set_away(true);
        store
    }

    pub(in crate::limiter) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    pub(in crate::limiter) fn set_late_by(&self, late_by: Duration) {
        *self.late_by.lock().unwrap() = late_by;
    }

    pub(in crate::limiter) fn set_forgetful(&self) {
        self.is_forgetful.store(true, Ordering::Relaxed);
    }

    pub(in crate::limiter) fn set_unreadable(&self) {
        self.is_unreadable.store(true, Ordering::Relaxed);
    }

    pub(in crate::limiter) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    pub(in crate::limiter) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(in crate::limiter) fn written_back(&self) -> u64 {
        self.written_back.load(Ordering::Relaxed)
    }
}

impl Store for LatentStore {
    fn reserve<'a>(
        &'a self,
        limiter_refs: &'a Arc<[LimiterRef]>,
        call: &'a Arc<Call>,
    ) -> BoxFuture<'a, Result<Answer, Failure>> {
        async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            if self.is_away.load(Ordering::Relaxed) {
                return Err(StoreError::Away.into());
            }
            if self.is_unreadable.load(Ordering::Relaxed) {
                return Err(StoreError::Unreadable("a list".to_owned()).into());
            }
            if self.is_forgetful.load(Ordering::Relaxed) {
                return Ok(MemoryStore::new(self.clock).reserve_at(self.clock.now(), limiter_refs, call));
            }
            if self.delay > Duration::ZERO {
                sleep(self.delay).await;
            }
            let late_by = *self.late_by.lock().unwrap();
            if late_by > Duration::ZERO {
                let answer = self.store.reserve_now(limiter_refs, call);
                let late = async move {
                    sleep(late_by).await;
                    Some(answer)
                };
                return Err(Failure { error: StoreError::Timeout(Duration::ZERO), late: Some(late.boxed()) });
            }
            let mut answer = self.store.reserve(limiter_refs, call).await?;
            let epoch = self.epoch.load(Ordering::Relaxed);
            (answer.epoch.id, answer.epoch.memory) = (epoch, epoch);
            Ok(answer)
        }
        .boxed()
    }

    fn inspect<'a>(&'a self, limiter_ref: &'a LimiterRef) -> BoxFuture<'a, Result<StateView, StoreError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_away.load(Ordering::Relaxed) {
            return ready(Err(StoreError::Away)).boxed();
        }
        async move {
            if self.delay > Duration::ZERO {
                sleep(self.delay).await;
            }
            self.store.inspect(limiter_ref).await
        }
        .boxed()
    }

    fn reset<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        seen_for: Micros,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        self.store.reset(limiter_ref, seen_for)
    }

    fn report_upstream<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        report: &'a UpstreamReport,
    ) -> BoxFuture<'a, Result<ReportResult, Failure<ReportResult>>> {
        if self.is_away.load(Ordering::Relaxed) {
            return ready(Err(StoreError::Away.into())).boxed();
        }
        async move {
            if self.delay > Duration::ZERO {
                sleep(self.delay).await;
            }
            let result = self.store.report_upstream(limiter_ref, report).await;
            let late_by = *self.late_by.lock().unwrap();
            if late_by == Duration::ZERO {
                return result;
            }
            let late = async move {
                sleep(late_by).await;
                result.ok()
            };
            Err(Failure { error: StoreError::Timeout(Duration::ZERO), late: Some(late.boxed()) })
        }
        .boxed()
    }

    fn write_back<'a>(
        &'a self,
        _: &'a LimiterRef,
        write: &'a WriteBack,
    ) -> BoxFuture<'a, Result<Epoch, StoreError>> {
        let permits = write.entries.iter().map(|(_, permits)| permits).sum();
        self.written_back.fetch_add(permits, Ordering::Relaxed);
        ready(Ok(Epoch::default())).boxed()
    }

    fn pause<'a>(
        &'a self,
        limiter_ref: &'a LimiterRef,
        pause: &'a PauseByHand,
    ) -> BoxFuture<'a, Result<ReportResult, StoreError>> {
        if self.is_away.load(Ordering::Relaxed) {
            return ready(Err(StoreError::Away)).boxed();
        }
        async move {
            let result = self.store.pause(limiter_ref, pause).await;
            let late_by = *self.late_by.lock().unwrap();
            if late_by > Duration::ZERO {
                sleep(late_by).await;
            }
            result
        }
        .boxed()
    }

    fn lease(&self) -> Micros {
        // Longer than an answer takes.
        self.store.lease() + Micros::from(self.delay * 2)
    }

    fn timeout(&self) -> Micros {
        self.delay.into()
    }

    fn is_up(&self) -> bool {
        !self.is_away.load(Ordering::Relaxed)
    }
}
