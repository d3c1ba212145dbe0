//! An honest limiter, written for these tests, with its windows widened by the guard: the oracle must not blame it. The same
//! limiter with a fault in it must be found.

use std::collections::VecDeque;

use super::{Algorithm, Court, LimitModel, LimiterModel, MS, S, STATE, What, limit, limiter, sliding};

/// How many limiters are tried.
const ROUNDS: u64 = 300;

/// How the limiter is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Windows are not widened.
    IgnoresGuard,
    /// Each tenth request is not charged.
    ForgetsOne,
    /// Takes the newest request of those that wait.
    Unordered,
    /// Uses every second slot.
    Wasteful,
    /// Lets requests wait for a fifth of a second too long.
    Patient,
    /// Refuses each hundredth request at once.
    Moody,
}

/// Random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Slots given so far, all in order.
struct Slots {
    limits: Vec<LimitModel>,
    guard: u64,
    given: VecDeque<(u64, u64)>,
    /// Times the rate.
    full_at: Vec<u64>,
}

impl Slots {
    /// Returns the first instant from `from` on at which all limits have room.
    fn next(&self, from: u64, cost: u64) -> u64 {
        let mut at = from;
        loop {
            let moved = (0..self.limits.len()).fold(at, |at, index| self.room(index, at, cost));
            if moved == at {
                return at;
            }
            at = moved;
        }
    }

    fn room(&self, index: usize, at: u64, cost: u64) -> u64 {
        let LimitModel { rate, per, algorithm } = self.limits[index];
        let width = per + self.guard;
        let full = |from: u64| {
            let mut sum = cost;
            self.given.iter().rev().take_while(|(at, _)| *at >= from).find_map(|(at, cost)| {
                sum += cost;
                (sum > rate).then_some(*at)
            })
        };
        match algorithm {
            Algorithm::SlidingWindow => {
                full((at + 1).saturating_sub(width)).map_or(at, |oldest| oldest + width)
            }
            Algorithm::FixedWindow if at % per + self.guard >= per => at.next_multiple_of(per),
            Algorithm::FixedWindow => full(at - at % per).map_or(at, |_| (at + 1).next_multiple_of(per)),
            Algorithm::TokenBucket { burst } => self.bucket(index, at, burst.saturating_sub(cost)),
            Algorithm::LeakyBucket | Algorithm::WarmUp { .. } => self.bucket(index, at, 0),
        }
    }

    fn bucket(&self, index: usize, at: u64, spare: u64) -> u64 {
        let LimitModel { rate, per, .. } = self.limits[index];
        at.max(self.full_at[index].saturating_sub(spare * (per + self.guard)).div_ceil(rate))
    }

    fn book(&mut self, at: u64, cost: u64) {
        self.given.push_back((at, cost));
        while self.given.len() > 2000 {
            self.given.pop_front();
        }
        for (full_at, LimitModel { rate, per, .. }) in self.full_at.iter_mut().zip(&self.limits) {
            *full_at = (*full_at).max(at * rate) + cost * (per + self.guard);
        }
    }
}

/// Runs a minute with `rate` requests a second in the mean; returns what is found, and the thousandths that are used.
fn run(
    limits: &[LimitModel],
    rate: u64,
    cost_max: u64,
    queue: Option<u64>,
    fault: Fault,
) -> (Vec<What>, u64) {
    let model = LimiterModel { wait_max: queue, max_waiting: 100_000, ..limiter(limits) };
    let guard = if fault == Fault::IgnoresGuard { 0 } else { model.guard };
    let full_at = vec![0; limits.len()];
    let mut slots = Slots { limits: limits.to_vec(), guard, given: VecDeque::new(), full_at };
    let mut court = Court::new(std::slice::from_ref(&model));
    let mut random = Random(88_172_645_463_325_252);
    let mut waiting = VecDeque::new();
    // When each slot is used.
    let mut uses: VecDeque<u64> = VecDeque::new();
    let (mut now, mut last_slot, mut last_use) = (0, 0, 0);
    let wait = queue.unwrap_or(0) + if fault == Fault::Patient { 200 * MS } else { 0 };
    while now < 60 * S {
        while let Some(at) = uses.pop_front_if(|at| *at <= now) {
            let request = if fault == Fault::Unordered { waiting.pop_back() } else { waiting.pop_front() };
            court.send(at, request.expect("one for each slot"));
        }
        let cost = 1 + random.below(cost_max);
        let request = court.arrive(now, cost);
        let slot = slots.next(last_slot.max(now), cost);
        if slot > now + wait || (fault == Fault::Moody && request.is_multiple_of(100)) {
            court.refuse(now, request);
        } else {
            if fault != Fault::ForgetsOne || !request.is_multiple_of(10) {
                slots.book(slot, cost);
            }
            let waste = if fault == Fault::Wasteful { random.below(cost * 12 * S / rate) } else { 0 };
            last_slot = slot + waste;
            last_use = last_use.max(slot + random.below(model.guard));
            uses.push_back(last_use);
            waiting.push_back(request);
            court.wait(now, request);
        }
        now += random.below(2 * S / rate) + 1;
    }
    (court.whats(), court.oracle.summary().used_permille.unwrap_or(0))
}

/// Limits, the rate of requests, the highest cost, and how much must be used in thousandths.
fn cases() -> Vec<(Vec<LimitModel>, u64, u64, u64)> {
    vec![
        (vec![sliding(40, 2 * S)], 60, 1, 970),
        (vec![sliding(10, S)], 30, 3, 900),
        (vec![sliding(20, S), sliding(100, 10 * S)], 30, 1, 970),
        (vec![limit(40, 2 * S, Algorithm::FixedWindow)], 60, 1, 970),
        (vec![limit(20, S, Algorithm::TokenBucket { burst: 30 })], 60, 1, 970),
        (vec![limit(20, S, Algorithm::LeakyBucket)], 60, 1, 970),
        (vec![limit(20, S, Algorithm::LeakyBucket)], 60, 4, 900),
        (vec![limit(600, S, Algorithm::LeakyBucket)], 1800, 1, 970),
        (vec![limit(20, S, Algorithm::LeakyBucket), sliding(150, 10 * S)], 45, 1, 970),
    ]
}

#[test]
fn an_honest_limiter_is_not_blamed() {
    for (limits, rate, cost_max, used_min) in cases() {
        let (found, used) = run(&limits, rate, cost_max, Some(5 * S), Fault::None);
        assert_eq!(found, [], "{limits:?}");
        assert!(used >= used_min, "{used} thousandths used of {limits:?}");
    }
}

#[test]
fn an_honest_limiter_without_a_queue_is_not_blamed() {
    for (limits, rate, cost_max, _) in cases() {
        let (found, _) = run(&limits, rate, cost_max, None, Fault::None);
        assert_eq!(found, [], "{limits:?}");
        let (found, _) = run(&limits, rate / 6, 1, None, Fault::None);
        assert_eq!(found, [], "hardly used, {limits:?}");
    }
}

#[test]
fn a_wrong_limiter_is_found() {
    for (limits, rate, cost_max, _) in cases() {
        let found = |fault| run(&limits, rate, cost_max, Some(5 * S), fault).0;
        assert!(found(Fault::ForgetsOne).contains(&What::Over), "{limits:?}");
        assert!(found(Fault::Wasteful).contains(&What::Unused), "{limits:?}");
        assert!(found(Fault::Patient).contains(&What::Waited), "{limits:?}");
        if limits[0].algorithm != Algorithm::FixedWindow {
            assert!(found(Fault::IgnoresGuard).contains(&What::Over), "{limits:?}");
        }
        if cost_max == 1 {
            assert!(found(Fault::Unordered).contains(&What::Order), "{limits:?}");
        }
        let without_queue = run(&limits, rate / 10, 1, None, Fault::Moody).0;
        assert!(without_queue.contains(&What::RefusedWithRoom), "{limits:?}");
    }
}

/// Any limits, costs and waits: what an honest limiter does is never wrong.
#[test]
fn an_honest_limiter_with_any_limits_is_not_blamed() {
    let mut random = Random(271_828_182_845);
    for _ in 0..ROUNDS {
        let mut limits = Vec::new();
        let mut pace = u64::MAX;
        for _ in 0..=random.below(2) {
            let per = [500 * MS, S, 2 * S, 5 * S, 10 * S, 20 * S][index(random.below(6))];
            let rate = 2 + random.below(30) * (1 + random.below(4));
            let algorithm = [
                Algorithm::SlidingWindow,
                Algorithm::FixedWindow,
                Algorithm::TokenBucket { burst: 1 + random.below(rate) },
                Algorithm::LeakyBucket,
            ][index(random.below(4))];
            pace = pace.min((rate * S).div_ceil(per));
            limits.push(limit(rate, per, algorithm));
        }
        let least = limits.iter().map(|limit| limit.rate).min().unwrap_or(1);
        let cost_max = 1 + random.below(least.min(8));
        let queue = [None, Some(S), Some(5 * S), Some(30 * S)][index(random.below(4))];
        let demand = (pace * (1 + random.below(4)) / cost_max.div_ceil(2)).max(1);
        let (found, used) = run(&limits, demand, cost_max, queue, Fault::None);
        assert_eq!(found, [], "{limits:?}, cost {cost_max}, queue {queue:?}, {demand} a second, {used} used");
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Compares with the definition: any interval, looked at by itself.
#[test]
fn meters_equal_their_definitions() {
    let mut random = Random(3_141_592_653);
    for round in 0..300 {
        let (rate, per, burst) = (1 + random.below(9), 100 * MS + random.below(S), 1 + random.below(9));
        let is_bucket = round % 2 == 0;
        let algorithm = if is_bucket { Algorithm::TokenBucket { burst } } else { Algorithm::SlidingWindow };
        let mut court = Court::new(&[LimiterModel { guard: 0, ..limiter(&[limit(rate, per, algorithm)]) }]);
        let mut sent: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        loop {
            at += random.below(per / rate);
            let cost = 1 + random.below(3);
            sent.push((at, cost));
            let request = court.arrive_at(at, 0, &[STATE], cost, None);
            court.send(at, request);
            let is_over = |(index, (from, _)): (usize, &(u64, u64))| {
                let sum: u64 = sent[index..].iter().map(|(_, cost)| cost).sum();
                if is_bucket {
                    // Two microseconds: the grid of the slots.
                    let late = if at - from < per { 2 } else { 0 };
                    sum * (per + late) > burst.max(cost) * (per + late) + rate * (at - from + late)
                } else {
                    at - from < per && sum > rate
                }
            };
            let expected = sent.iter().enumerate().any(is_over);
            assert_eq!(court.whats().contains(&What::Over), expected, "{algorithm:?} {rate} {per} {sent:?}");
            if expected || sent.len() > 60 {
                break;
            }
        }
    }
}
