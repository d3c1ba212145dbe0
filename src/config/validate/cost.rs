//! `routes.cost`: the permits that a request takes, and their settlement by the response.

use super::check::Check;
use super::headers::{is_own, named_header};
use super::json::{json_path, json_paths};
use super::limiter::Keyed;
use super::place::{At, Given, all, key};
use crate::config::model::{Cost, Settle};
use crate::config::problem::quoted;
use crate::config::schema::{self, Form};
use crate::limiter::model::limit::{Mode, Permits, RATE_MAX};

pub(super) type Written = Option<Form<schema::Cost, schema::CostHeader>>;

/// Checks the cost of a route's requests.
pub(super) fn cost(check: &mut Check<'_>, given: &Given<'_, Written>, limiters: &[&Keyed]) -> Option<Cost> {
    match given.value {
        None => Some(Cost::Fixed(Permits::ONE)),
        Some(Form::Short(schema::Cost(number))) => {
            let cost = permits(check, &Given::new(&Some(*number), given.at.clone()))?;
            can_be_granted(check, cost, limiters, &given.at).then_some(Cost::Fixed(cost))
        }
        Some(Form::Long(long)) => long_form(check, &Given::new(long, given.at.clone()), limiters),
    }
}

/// Checks how responses settle the cost. The outer `None` is a problem, the inner one no settlement.
pub(super) fn settle(check: &mut Check<'_>, given: &Given<'_, Written>) -> Option<Option<Settle>> {
    let Some(Form::Long(cost)) = given.value else { return Some(None) };
    let cost = Given::new(cost, given.at.clone());
    key!(cost.settle).checked(|settle| {
        let written = settle.value;
        if written.header.is_none() && written.json.is_none() && written.free.is_none() {
            return check.refuse(&settle.at, "needs `header`, `json` or `free`");
        }
        let json = key!(settle.json).checked(|paths| json_paths(check, &paths));
        let header = key!(settle.header).checked(|name| named_header(check, &name, "x-cost"));
        let free = all(key!(settle.free).items().map(|status| {
            let code = u16::try_from(*status.value).ok().filter(|code| (200..600).contains(code));
            code.or_else(|| check.refuse(&status.at, "expected a status from 200 to 599, such as 304"))
        }));
        Some(Settle { header: header?, json: json?.unwrap_or_default(), free: free? })
    })
}

fn long_form(
    check: &mut Check<'_>,
    cost: &Given<'_, schema::CostHeader>,
    limiters: &[&Keyed],
) -> Option<Cost> {
    match (key!(cost.header).get(), key!(cost.json).get()) {
        (Some(_), Some(json)) => {
            check.problem_of_key(&json.at, "`header` and `json` exclude each other");
            None
        }
        (Some(name), None) => {
            let header = named_header(check, &name, "weir-cost");
            if header.as_ref().is_some_and(is_own) {
                check.problem(&name.at, "this header frames the message or addresses it; choose another");
            }
            let (default, max) = named(check, cost, limiters)?;
            Some(Cost::Header { name: header?, default, max })
        }
        (None, Some(path)) => {
            let path = json_path(check, &path);
            let (default, max) = named(check, cost, limiters)?;
            Some(Cost::Json { path: path?, default, max })
        }
        (None, None) => fixed(check, cost, limiters),
    }
}

fn fixed(check: &mut Check<'_>, cost: &Given<'_, schema::CostHeader>, limiters: &[&Keyed]) -> Option<Cost> {
    if cost.value.settle.is_none() {
        return check.refuse(&cost.at, "needs `header`, `json` or `settle`");
    }
    if cost.value.max.is_some() {
        check.problem_of_key(
            &key!(cost.max).at,
            "is for a cost that the request names, by `header` or `json`",
        );
        return None;
    }
    let default = permits(check, &key!(cost.default))?;
    can_be_granted(check, default, limiters, &key!(cost.default).at).then_some(Cost::Fixed(default))
}

/// Checks a cost that the request names: the cost of one that names none, and the largest one.
fn named(
    check: &mut Check<'_>,
    cost: &Given<'_, schema::CostHeader>,
    limiters: &[&Keyed],
) -> Option<(Permits, Permits)> {
    // A limiter in shadow mode bounds no cost.
    let enforced = limiters.iter().filter(|(limiter, _)| limiter.mode == Mode::Enforce);
    let grantable = enforced.map(|(limiter, _)| limiter.cost_max_anywhere()).min();
    let default = permits(check, &key!(cost.default));
    let max = key!(cost.max).checked(|_| permits(check, &key!(cost.max)));
    let max = max.and_then(|max| max.or(grantable).or_else(|| Permits::new(RATE_MAX.into())));
    let (default, max) = (default?, max?);
    let has_max = cost.value.max.is_some();
    let at = if cost.value.default.is_some() { key!(cost.default).at } else { key!(cost.max).at };
    if has_max && default > max {
        return check.refuse(&at, "`default` must not be larger than `max`");
    }
    can_be_granted(check, default, limiters, &at).then_some((default, max))
}

/// Returns whether every limiter, with all its overrides, can grant a cost at once; reports the first one that cannot. Such a cost would
/// refuse every request.
fn can_be_granted(check: &mut Check<'_>, cost: Permits, limiters: &[&Keyed], at: &At<'_>) -> bool {
    let mut all = limiters.iter().flat_map(|(limiter, _)| {
        let lowest = limiter.overrides().min_by_key(|it| (it.cost_max(), it.value().cloned()));
        [limiter].into_iter().chain(lowest)
    });
    let Some(limiter) = all.find(|limiter| cost > limiter.cost_max()) else { return true };
    let tightest = limiter.limits.iter().min_by_key(|limit| limit.cost_max());
    let whose = limiter.value().map(|value| format!(" to {}", quoted(value))).unwrap_or_default();
    let message = format!(
        "larger than limiter {} can ever grant{whose}: {} at once ({})",
        quoted(limiter.name.as_str()),
        limiter.cost_max(),
        tightest.map(|limit| &*limit.label).unwrap_or_default(),
    );
    check.problem(at, message);
    false
}

/// Checks a number of permits, by default 1.
fn permits(check: &mut Check<'_>, given: &Given<'_, Option<i64>>) -> Option<Permits> {
    check.count(given, 1, 1..=RATE_MAX).and_then(|count| Permits::new(count.into()))
}
