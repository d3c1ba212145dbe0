//! The limiter's surface as the proxy sees it, until the limiter lands.
#![allow(missing_docs)]
use std::sync::Arc;
use std::time::Duration;

use super::limit::{Limiter, LimiterName, Permits};
use crate::clock::Micros;

#[derive(Clone, Default, Debug)]
pub struct Limiters(Vec<Arc<Limiter>>);
impl Limiters {
    pub fn queue(&self, limiter: &LimiterName) -> Option<Queue> {
        self.0.iter().find(|known| known.name == *limiter).map(|known| Queue(Arc::clone(known)))
    }
}
#[derive(Clone, Debug)]
pub struct Queue(Arc<Limiter>);
pub struct Demand {
    pub cost: Permits,
    pub wait_max: Option<Duration>,
}
pub enum Entered {
    Granted(Permit),
    Waiting(Ticket),
}
impl Queue {
    pub async fn enter(&self, _demand: Demand) -> Result<Entered, Refusal> {
        Ok(Entered::Granted(Permit(())))
    }
    pub fn limiter(&self) -> &Arc<Limiter> {
        &self.0
    }
}
pub struct Ticket(());
impl Ticket {
    pub async fn approaching(&mut self) {}
    pub async fn turn(self) -> Result<Permit, Refusal> {
        Ok(Permit(()))
    }
}
#[must_use]
pub struct Permit(());
impl Permit {
    pub async fn confirm(&mut self) -> Result<(), Refusal> {
        Ok(())
    }
    pub fn commit(self) {}
    pub fn waited(&self) -> Duration {
        Duration::ZERO
    }
}
#[derive(Debug)]
pub enum Refusal {
    RateLimited { limiter: LimiterName, limit: usize, retry_after: Micros },
    QueueFull { limiter: LimiterName, limit: usize, retry_after: Micros },
    StoreUnavailable { limiter: LimiterName },
    CostExceedsLimit { limiter: LimiterName, cost_max: Permits },
    Closed { limiter: LimiterName },
}
