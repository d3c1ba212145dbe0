//! Settles what a request has cost by its response: by the head at once, else by numbers in the body, which goes on to the client meanwhile.
//!
//! Decides nothing about limits.

use std::sync::Arc;

use http::Response;

use super::plan::Plan;
use crate::config::model::{Cost, JsonPath, Learn, Settle, Usage};
use crate::limiter::model::{RATE_MAX, TrueCost};
use crate::limiter::{Partition, Receipt};
use crate::proxy::messages::body_numbers::BodyNumbers;
use crate::proxy::messages::{response, settle};
use crate::proxy::route::table::Route;

/// Costs that the body of a response settles.
pub(crate) struct Settling {
    /// For each of the route's limiters, or for all of them at once, what settles its cost.
    parts: Vec<Part>,
    route: Arc<Route>,
    partitions: Vec<Option<Partition>>,
    /// The permit, until its cost is settled.
    receipt: Option<Receipt>,
}

impl Drop for Settling {
    /// Of a response that nobody reads to its end, such as one behind which the request is sent once more, what its head has told is settled.
    fn drop(&mut self) {
        self.end(false);
    }
}

/// The settlement of a cost.
enum Part {
    /// Nothing: it stays as it is.
    Nothing,
    /// The head of the response has told it.
    Told(u64),
    /// Its body may tell it.
    Body(Box<BodyNumbers>),
    /// Numbers in its body make it up.
    Usage(Box<BodyNumbers>, Arc<Usage>),
}

impl Part {
    fn of<B>((cost, settle): (&Cost, Option<&Settle>), plan: &Plan, answer: &Response<B>) -> Part {
        let (status, headers) = (answer.status(), answer.headers());
        let Some(settle) = settle else { return Part::Nothing };
        if let Some(cost) = settle::cost_settled(status, headers, settle) {
            return Part::Told(cost);
        }
        let numbers = |paths: &[JsonPath]| BodyNumbers::of(headers, paths, RATE_MAX.into()).map(Box::new);
        match &settle.usage {
            // It has not come to a token.
            Some(usage) if usage.refund && response::is_before_any_work(status) => Part::Told(0),
            Some(_) if !status.is_success() => Part::Nothing,
            // Nothing was estimated, because nothing was asked of a model: the answer repeats the usage of a request before, such as a batch.
            Some(_) if matches!(cost, Cost::Estimate(_)) && plan.body_bytes.is_none() => Part::Nothing,
            Some(usage) => {
                numbers(&usage.paths()).map_or(Part::Nothing, |it| Part::Usage(it, Arc::clone(usage)))
            }
            None if settle.json.is_empty() => Part::Nothing,
            None => numbers(&settle.json).map_or(Part::Nothing, Part::Body),
        }
    }

    /// Returns the true cost, as far as it is known. Of a body that has broken off nobody knows what was still to come, so nothing is given
    /// back.
    fn cost(&self, is_whole: bool) -> Option<TrueCost> {
        let (permits, is_refunded) = match self {
            Part::Nothing => return None,
            Part::Told(cost) => (*cost, true),
            Part::Body(numbers) => (numbers.largest()?, is_whole),
            Part::Usage(numbers, usage) => (usage.cost(numbers.each())?, is_whole && usage.refund),
        };
        Some(TrueCost { permits: permits.min(RATE_MAX.into()), is_refunded })
    }

    /// Returns whether the body has told that it is whole. A client may leave then, before its end has come.
    fn is_done(&self) -> bool {
        match self {
            Part::Nothing | Part::Told(_) => false,
            Part::Body(numbers) | Part::Usage(numbers, _) => numbers.is_done(),
        }
    }

    fn numbers(&mut self) -> Option<&mut BodyNumbers> {
        match self {
            Part::Nothing | Part::Told(_) => None,
            Part::Body(numbers) | Part::Usage(numbers, _) => Some(numbers),
        }
    }
}

impl Settling {
    /// Settles what the head of a response tells, if no body can tell more; else begins to look into the body.
    pub(crate) fn of<B>(plan: &Plan, response: &Response<B>, receipt: &Receipt) -> Option<Box<Settling>> {
        let rule = &plan.route.rule;
        let parts: Vec<Part> = if rule.charges.is_empty() {
            vec![Part::of((&rule.cost, rule.settle.as_ref()), plan, response)]
        } else {
            let settled = rule.charges.iter().map(|charge| (&charge.cost, charge.settle.as_ref()));
            settled.map(|settled| Part::of(settled, plan, response)).collect()
        };
        let mut settling = Settling {
            parts,
            route: Arc::clone(&plan.route),
            partitions: plan.partitions.clone(),
            receipt: Some(receipt.clone()),
        };
        if settling.parts.iter().any(|part| matches!(part, Part::Body(_) | Part::Usage(..))) {
            return Some(Box::new(settling));
        }
        settling.end(true);
        None
    }

    /// Looks at a further piece of the body.
    pub(crate) fn see(&mut self, piece: &[u8]) {
        for part in &mut self.parts {
            if let Some(numbers) = part.numbers() {
                numbers.see(piece);
            }
        }
    }

    /// Settles the costs at the end of the body, the first time that it is called.
    pub(crate) fn end(&mut self, is_whole: bool) {
        let Some((receipt, limiter_set)) = self.receipt.take().zip(self.route.limiter_set.as_ref()) else {
            return;
        };
        let is_whole = is_whole || self.parts.iter().any(Part::is_done);
        let part = |place: usize| self.parts.get(place).or_else(|| self.parts.first());
        limiter_set.settle(&self.partitions, &receipt, |place| part(place)?.cost(is_whole));
        for (place, part) in self.parts.iter().enumerate().filter(|_| is_whole) {
            if let Part::Usage(numbers, usage) = part
                && let Some(output) = usage.output_of(numbers.each())
                && self.learns(place)
            {
                let partition = self.partitions.get(place).copied().flatten();
                self.route.learned_outputs.add(place, partition, output);
            }
        }
    }

    /// Returns whether the output is learnt at a limiter.
    fn learns(&self, place: usize) -> bool {
        let cost = self.route.rule.costs().nth(place);
        matches!(cost, Some(Cost::Estimate(estimate)) if estimate.learn == Learn::P95)
    }
}
