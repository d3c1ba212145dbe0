//! The fleet's counts of who has used what, in Redis: a key for each hour and each day.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use serde::Serialize;

use crate::clock::Micros;
use crate::limiter::store::StoreError;
use crate::redis::answers::{self, FiguresRow, Rows};
use crate::redis::arguments::{Arguments, Context};
use crate::redis::keys;
use crate::redis::store::RedisStore;
use crate::telemetry::StoreOp;
use crate::usage::{
    Batch, By, Counts, KEPT_FOR, Key, Period, Record, ReplicaFigures, Stamp, UsageError, UsageStore,
};

/// The most periods that one call reads, so that it holds up no other for long.
const PERIODS_MAX: usize = 24;

/// The owner of the connection for these calls.
const OWNER: &str = "usage";

/// The counts of a replica on their way to Redis, or those of the fleet on their way back.
pub struct RedisUsage {
    store: RedisStore,
    /// The number of this replica.
    replica: u64,
}

#[derive(Serialize)]
struct FiguresArguments<'a> {
    given_now: u64,
    counts_for: u64,
    caller: u64,
    figures: &'a str,
    leaves: bool,
}

#[derive(Serialize)]
struct UsageArguments<'a> {
    given_now: u64,
    kept_for: u64,
    caller: u64,
    number: u64,
    rows: Vec<Item<'a>>,
}

/// A name or a count: the rows are one flat list.
#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Name(&'a str),
    Count(u64),
}

impl RedisUsage {
    /// Returns the counts in this store, as the replica of this number sees them.
    pub fn new(store: RedisStore, replica: u64) -> RedisUsage {
        RedisUsage { store, replica }
    }

    async fn call(
        &self,
        periods: &[Period],
        (number, rows): (u64, &[(String, Counts)]),
    ) -> Result<(Stamp, Vec<Rows>), StoreError> {
        let arguments = |prefix: &str| {
            let names = std::iter::once(keys::usage_since(prefix));
            let keys: Vec<String> =
                names.chain(periods.iter().map(|period| keys::usage(prefix, *period))).collect();
            let kept_for = Micros::from(KEPT_FOR).0;
            let items = rows.iter().flat_map(|(name, counts)| {
                let Counts { granted, refused, waited, cancelled } = *counts;
                let counts = [granted, refused, waited, cancelled].map(Item::Count);
                std::iter::once(Item::Name(name)).chain(counts)
            });
            let values = UsageArguments {
                given_now: 0,
                kept_for,
                caller: self.replica,
                number,
                rows: items.collect(),
            };
            Arguments::new(keys, &values)
        };
        self.store.ask(StoreOp::Usage, OWNER, |context| arguments(context.prefix), answers::usage).await
    }

    /// Makes both calls as a check does: nothing is added, and nothing is returned.
    pub(super) async fn try_out(store: &RedisStore) -> Result<(), StoreError> {
        let usage = RedisUsage::new(store.clone(), 1);
        usage.call(&[], (1, &[])).await?;
        usage.tell("", Duration::from_micros(1), true).await.map(drop)
    }

    /// Tells the figures of this replica, and returns the instant and what all have told.
    async fn tell(
        &self,
        figures: &str,
        counts_for: Duration,
        leaves: bool,
    ) -> Result<(u64, Vec<FiguresRow>), StoreError> {
        let counts_for = Micros::from(counts_for).0;
        let values = FiguresArguments { given_now: 0, counts_for, caller: self.replica, figures, leaves };
        let arguments = |context: &Context<'_>| Arguments::new([keys::figures(context.prefix)], &values);
        self.store.ask(StoreOp::Figures, OWNER, arguments, answers::figures).await
    }
}

fn failed(error: &StoreError) -> UsageError {
    UsageError(error.to_string())
}

impl UsageStore for RedisUsage {
    fn add<'a>(&'a self, batch: &'a Batch) -> BoxFuture<'a, Result<Stamp, UsageError>> {
        async move {
            let rows: Vec<_> = batch.rows.iter().map(|(key, counts)| (stored_name(key), *counts)).collect();
            let added = self.call(&batch.periods(), (batch.number, &rows)).await;
            added.map(|(stamp, _)| stamp).map_err(|error| failed(&error))
        }
        .boxed()
    }

    fn exchange<'a>(
        &'a self,
        figures: &'a str,
        counts_for: Duration,
        leaves: bool,
    ) -> BoxFuture<'a, Result<(u64, Vec<ReplicaFigures>), UsageError>> {
        async move {
            let told = self.tell(figures, counts_for, leaves).await;
            let (now_us, told) = told.map_err(|error| failed(&error))?;
            let told = told.into_iter().map(|(replica, ago_us, figures)| ReplicaFigures {
                is_this: replica == self.replica,
                ago: Duration::from_micros(ago_us),
                figures,
            });
            Ok((now_us, told.collect()))
        }
        .boxed()
    }

    fn read<'a>(&'a self, periods: &'a [Period]) -> BoxFuture<'a, Result<Record, UsageError>> {
        async move {
            let (mut stamp, mut rows) = (None, Vec::new());
            for some in periods.chunks(PERIODS_MAX) {
                let (read_at, read) = self.call(some, (0, &[])).await.map_err(|error| failed(&error))?;
                stamp = Some(read_at);
                for (period, of_period) in some.iter().zip(read) {
                    rows.extend(of_period.into_iter().filter_map(
                        |(name, granted, refused, waited, cancelled)| {
                            Some((*period, key_of(&name)?, Counts { granted, refused, waited, cancelled }))
                        },
                    ));
                }
            }
            let stamp = stamp.ok_or_else(|| UsageError("no period is asked for".to_owned()))?;
            Ok(Record { stamp, rows })
        }
        .boxed()
    }
}

/// Returns the name of a row as it is stored: `client:NAME`.
fn stored_name((by, name): &Key) -> String {
    format!("{}:{name}", by.as_str())
}

/// Returns the client, route or limiter of a stored name.
fn key_of(stored: &str) -> Option<Key> {
    let (by, name) = stored.split_once(':')?;
    Some((By::named(by)?, Arc::from(name)))
}
