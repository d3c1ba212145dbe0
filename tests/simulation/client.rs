//! Requests as the proxy makes them: they enter, wait for their turn, confirm their permit and are sent; and the answers of
//! the upstream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use weir::limiter::model::{Costs, Flow, Permits, Refusal, TrueCost};
use weir::limiter::{Demand, Entered, LimiterSet, Partition, Permit, UpstreamSignal};

/// A command of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// A pause; zero ends the present one.
    Pause(Duration),
    Reset,
}

/// An event in a replica.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// The replica has started, and listens.
    Ready,
    /// A request has a place in the queue.
    Waiting(u64),
    /// A request has its turn, and no connection yet.
    Connecting(u64),
    /// A request that had no connection has one.
    Connected(u64),
    /// A request was written to the upstream.
    Sent(u64),
    /// The response to a request has ended, and its cost is known.
    Settled(u64),
    /// A request was refused.
    Refused(u64, Why),
    /// The client of a request has gone.
    Left(u64),
    /// The command of an operator was carried out, or failed.
    Operated { limiter: String, command: Command, done: bool },
    /// The replica has ended.
    Closed,
}

/// The reason of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    RateLimited,
    Paused,
    QueueFull,
    StoreUnavailable,
    TooCostly,
    Closed,
}

impl From<&Refusal> for Why {
    fn from(refusal: &Refusal) -> Why {
        match refusal {
            Refusal::RateLimited { .. } => Why::RateLimited,
            Refusal::Paused { .. } => Why::Paused,
            Refusal::QueueFull { .. } => Why::QueueFull,
            Refusal::StoreUnavailable { .. } => Why::StoreUnavailable,
            Refusal::CostExceedsLimit { .. } => Why::TooCostly,
            Refusal::Closed { .. } => Why::Closed,
        }
    }
}

/// The events in a replica since the world looked last.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<Note>>>);

impl Notes {
    pub fn add(&self, note: Note) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    pub fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The answer of the upstream to a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UpstreamAnswer {
    /// Its signals about its quota.
    pub signal: Option<UpstreamSignal>,
    /// The true cost of the request at each limiter; empty if nobody settles it.
    pub costs: Vec<u64>,
    /// How long its body takes: the cost is known at its end, the signals at its begin.
    pub body: Duration,
}

/// The answers on their way, by request. The world puts them in when it sees that a request was sent.
#[derive(Clone, Default)]
pub struct UpstreamAnswers(Arc<Mutex<HashMap<u64, UpstreamAnswer>>>);

impl UpstreamAnswers {
    pub fn put(&self, request: u64, answer: UpstreamAnswer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(request, answer);
    }

    fn take(&self, request: u64) -> Option<UpstreamAnswer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&request)
    }
}

/// A request of a client.
pub struct Request {
    pub id: u64,
    /// The route, by its place in the configuration.
    pub route: usize,
    /// The partitions, in the order of the route's limiters.
    pub partitions: Vec<Option<Partition>>,
    /// The cost at each limiter.
    pub costs: Vec<u64>,
    /// The caller, where callers share the quota.
    pub flow: Flow,
    /// The longest wait that the request names.
    pub wait_max: Option<Duration>,
    /// When the client goes away, if it is not answered.
    pub patience: Option<Duration>,
    /// How long its connection takes once it has its turn.
    pub connecting: Duration,
    /// How long the upstream takes.
    pub upstream: Duration,
    pub answers: UpstreamAnswers,
}

/// Notes that a request has left, unless it was answered before.
struct Leaving {
    id: u64,
    notes: Notes,
    is_answered: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if !self.is_answered {
            self.notes.add(Note::Left(self.id));
        }
    }
}

impl Request {
    /// Carries the request through the limiters and to the upstream.
    pub async fn run(self, limiter_set: LimiterSet, notes: Notes) {
        let mut leaving = Leaving { id: self.id, notes: notes.clone(), is_answered: false };
        let granted = self.granted(&limiter_set, &notes);
        let granted = match self.patience {
            Some(patience) => timeout(patience, granted).await,
            None => Ok(granted.await),
        };
        // The client has gone: the permit or the place in the queue is given back by being dropped.
        let Ok(granted) = granted else { return };
        leaving.is_answered = true;
        let permit = match granted {
            Ok(permit) => permit,
            Err(refusal) => return notes.add(Note::Refused(self.id, Why::from(&refusal))),
        };
        let receipt = permit.commit();
        notes.add(Note::Sent(self.id));
        sleep(self.upstream).await;
        if let (Some(receipt), Some(answer)) = (receipt, self.answers.take(self.id)) {
            if let Some(signal) = answer.signal {
                limiter_set.report_upstream(&self.partitions, &receipt, signal);
            }
            if !answer.costs.is_empty() {
                if !answer.body.is_zero() {
                    sleep(answer.body).await;
                }
                let used = |permits: &u64| TrueCost { permits: *permits, is_refunded: true };
                limiter_set.settle(&self.partitions, &receipt, |place| answer.costs.get(place).map(used));
                notes.add(Note::Settled(self.id));
            }
        }
    }

    /// Takes the permit of the request, and makes sure that it is good right before it is used.
    async fn granted(&self, limiter_set: &LimiterSet, notes: &Notes) -> Result<Permit, Refusal> {
        let costs = Costs::each_or_same(self.costs.iter().copied()).unwrap_or(Permits::ONE.into());
        let demand = Demand { costs, wait_max: self.wait_max, flow: self.flow };
        let mut permit = match limiter_set.enter(&self.partitions, demand).await? {
            Entered::Granted(permit) => permit,
            Entered::Waiting(ticket) => {
                notes.add(Note::Waiting(self.id));
                ticket.turn().await?
            }
        };
        if !self.connecting.is_zero() {
            notes.add(Note::Connecting(self.id));
            sleep(self.connecting).await;
            notes.add(Note::Connected(self.id));
        }
        permit.confirm().await?;
        Ok(permit)
    }
}
