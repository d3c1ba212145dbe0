//! `routes.cost`: the permits that a request takes, and their settlement by the response.

use std::sync::Arc;

use super::check::Check;
use super::headers::{is_own, named_header};
use super::json::{json_path, json_paths};
use super::limiter::Keyed;
use super::place::{At, Given, all, key};
use crate::config::model::{Combine, Cost, Estimate, JsonPath, Learn, Settle, Streams, Usage, Weights};
use crate::config::presets::PRESETS;
use crate::config::presets::preset::Preset;
use crate::config::problem::quoted;
use crate::config::schema::{self, Form, Paths};
use crate::limiter::model::limit::{Limiter, Mode, Permits, RATE_MAX};

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
    // An unknown one is reported with the cost.
    let preset = cost.value.tokens.as_deref().and_then(preset_of);
    let absent = schema::Settle::default();
    if !key!(cost.settle).at.is_given() && preset.is_none() {
        return Some(None);
    }
    let settle = key!(cost.settle).or(&absent);
    let written = settle.value;
    let combine = cost.value.estimate.as_ref().and_then(|estimate| estimate.combine);
    let usage = usage(check, &settle, (preset, combine));
    if written.include_usage == Some(true) && preset.is_none() && cost.value.estimate.is_none() {
        // The body of the request is read for its estimate.
        return check.refuse_key(&key!(settle.include_usage).at, "only with `tokens` or `estimate`");
    }
    let is_empty = written.header.is_none() && written.json.is_none() && written.free.is_none();
    if is_empty && matches!(usage, Some(None)) {
        return check.refuse(&settle.at, "needs `header`, `json`, `free`, or `input` or `output`");
    }
    let json = key!(settle.json).checked(|paths| json_paths(check, &paths));
    if matches!(usage, Some(Some(_))) && written.json.is_some() {
        return check.refuse_key(
            &key!(settle.json).at,
            "not beside `input`, `output` and `tokens`: one of both tells the cost",
        );
    }
    let header = key!(settle.header).checked(|name| named_header(check, &name, "x-cost"));
    let free = all(key!(settle.free).items().map(|status| {
        let code = u16::try_from(*status.value).ok().filter(|code| (200..600).contains(code));
        code.or_else(|| check.refuse(&status.at, "expected a status from 200 to 599, such as 304"))
    }));
    Some(Some(Settle {
        header: header?,
        json: json?.unwrap_or_default(),
        free: free?,
        usage: usage?.map(Arc::new),
    }))
}

/// The most places of one settlement.
const USAGE_PATHS_MAX: usize = 16;

/// Checks the numbers in responses that make up the cost. The outer `None` is a problem, the inner one none of them.
fn usage(
    check: &mut Check<'_>,
    settle: &Given<'_, schema::Settle>,
    (preset, combine): (Option<&Preset>, Option<Combine>),
) -> Option<Option<Usage>> {
    let input = paths_or(check, &key!(settle.input), preset, |preset| preset.input);
    let output = paths_or(check, &key!(settle.output), preset, |preset| preset.output);
    let plus = paths_or(check, &key!(settle.plus), preset, |preset| preset.plus);
    let cached = paths_or(check, &key!(settle.cached), preset, |preset| preset.cached);
    let absent = schema::Weights::default();
    let weights = key!(settle.weights).or(&absent);
    let of_preset = preset.map_or(Weights { input: 1, output: 1, cached: 0 }, |preset| preset.weights);
    let weights = Weights {
        input: check.count(&key!(weights.input), of_preset.input, 0..=1000)?,
        output: check.count(&key!(weights.output), of_preset.output, 0..=1000)?,
        cached: check.count(&key!(weights.cached), of_preset.cached, 0..=1000)?,
    };
    let (input, output, plus, cached) = (input?, output?, plus?, cached?);
    if input.is_empty() && output.is_empty() {
        let written = settle.value;
        let given = [
            written.plus.is_some(),
            written.cached.is_some(),
            written.weights.is_some(),
            written.refund.is_some(),
            written.include_usage.is_some(),
        ];
        if given.contains(&true) {
            return check.refuse(&settle.at, "needs `input` or `output` for these keys");
        }
        return Some(None);
    }
    if input.len() + output.len() + plus.len() + cached.len() > USAGE_PATHS_MAX {
        return check.refuse(&settle.at, format!("has more than {USAGE_PATHS_MAX} paths together"));
    }
    let combine = combine.or(preset.map(|preset| preset.combine)).unwrap_or_default();
    let refund = settle.value.refund.or(preset.map(|preset| preset.refund)).unwrap_or_default();
    let streams = match settle.value.include_usage {
        Some(true) => Streams::TellUsage,
        Some(false) => Streams::AsCalled,
        None => preset.map(|preset| preset.streams).unwrap_or_default(),
    };
    Some(Some(Usage { input, output, plus, cached, weights, combine, refund, streams }))
}

fn preset_of(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, preset)| preset)
}

/// Checks the paths of a key, by default those of a preset.
fn paths_or(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Paths>>,
    preset: Option<&Preset>,
    of_preset: fn(&Preset) -> &'static [&'static str],
) -> Option<Vec<JsonPath>> {
    let own = given.checked(|paths| json_paths(check, &paths))?;
    Some(own.unwrap_or_else(|| parsed(preset.map(of_preset).unwrap_or_default())))
}

/// Returns the paths of a preset, which are all valid.
fn parsed(paths: &[&str]) -> Vec<JsonPath> {
    paths.iter().filter_map(|path| JsonPath::parse(path)).collect()
}

fn long_form(
    check: &mut Check<'_>,
    cost: &Given<'_, schema::CostHeader>,
    limiters: &[&Keyed],
) -> Option<Cost> {
    let named_by = [key!(cost.header).at, key!(cost.json).at];
    if key!(cost.tokens).at.is_given() || key!(cost.estimate).at.is_given() {
        if let Some(other) = named_by.iter().find(|at| at.is_given()) {
            return check.refuse_key(
                other,
                "not beside `tokens` or `estimate`: one of both says what a request costs",
            );
        }
        return estimate(check, cost, limiters);
    }
    match (key!(cost.header).get(), key!(cost.json).get()) {
        (Some(_), Some(json)) => check.refuse_key(&json.at, "`header` and `json` exclude each other"),
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

/// Checks an estimate: that of a preset, with what is given beside it.
fn estimate(
    check: &mut Check<'_>,
    cost: &Given<'_, schema::CostHeader>,
    limiters: &[&Keyed],
) -> Option<Cost> {
    let preset = key!(cost.tokens).checked(|name| {
        let known = preset_of(name.value);
        if known.is_none() {
            let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
            check.reference("preset", &name, &names);
        }
        known
    })?;
    for (at, name) in [(key!(cost.default).at, "default"), (key!(cost.max).at, "max")] {
        if at.is_given() {
            check.problem_of_key(
                &at,
                format!(
                    "not with an estimate: `estimate.{}` says it",
                    if name == "max" { "max" } else { "output.otherwise" }
                ),
            );
            return None;
        }
    }
    let (absent, no_input, no_output) =
        (schema::Estimate::default(), schema::EstimateInput::default(), schema::EstimateOutput::default());
    let estimate = key!(cost.estimate).or(&absent);
    let (input, output) = (key!(estimate.input), key!(estimate.output));
    let has_output = output.at.is_given();
    let (input, output) = (input.or(&no_input), output.or(&no_output));
    let bytes_per_permit = check.count(&key!(input.bytes_per_permit), 3, 1..=1000);
    let image = check.count(&key!(input.image), 1000, 0..=1_000_000);
    let otherwise = preset.map_or(if has_output { 1000 } else { 0 }, |preset| preset.output_max.otherwise);
    let otherwise = check.count(&key!(output.otherwise), otherwise, 0..=1_000_000);
    let of = paths_or(check, &key!(input.of), preset, |preset| preset.of);
    let first_of = paths_or(check, &key!(output.first_of), preset, |preset| preset.output_max.first_of);
    let times_first_of =
        paths_or(check, &key!(output.times_first_of), preset, |preset| preset.output_max.times_first_of);
    let max = estimate_max(check, &key!(estimate.max), limiters)?;
    let learn = estimate.value.learn.or(preset.map(|preset| preset.learn)).unwrap_or_default();
    if learn == Learn::P95 && !can_learn(cost.value.settle.as_ref(), preset) {
        return check.refuse_key(
            &key!(estimate.learn).at,
            "needs `settle` with `output` and `refund: true`: it is for providers that count what was used",
        );
    }
    Some(Cost::Estimate(Arc::new(Estimate {
        bytes_per_permit: bytes_per_permit?,
        of: of?,
        image: image?,
        first_of: first_of?,
        otherwise: otherwise?,
        times_first_of: times_first_of?,
        combine: estimate.value.combine.or(preset.map(|preset| preset.combine)).unwrap_or_default(),
        max,
        learn,
    })))
}

/// Returns whether settled requests tell the outputs that an estimate learns from, and give back what they did not need.
fn can_learn(settle: Option<&schema::Settle>, preset: Option<&Preset>) -> bool {
    let is_told = settle.is_some_and(|settle| settle.output.is_some())
        || preset.is_some_and(|preset| !preset.output.is_empty());
    let is_refunded = settle.and_then(|settle| settle.refund).or(preset.map(|preset| preset.refund));
    is_told && is_refunded.unwrap_or_default()
}

fn fixed(check: &mut Check<'_>, cost: &Given<'_, schema::CostHeader>, limiters: &[&Keyed]) -> Option<Cost> {
    if cost.value.settle.is_none() {
        return check.refuse(&cost.at, "needs `header`, `json`, `tokens`, `estimate` or `settle`");
    }
    if cost.value.max.is_some() {
        return check
            .refuse_key(&key!(cost.max).at, "is for a cost that the request names, by `header` or `json`");
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
    let default = permits(check, &key!(cost.default));
    let max = cost_max(check, &key!(cost.max), limiters);
    let (default, max) = (default?, max?);
    let has_max = cost.value.max.is_some();
    let at = if cost.value.default.is_some() { key!(cost.default).at } else { key!(cost.max).at };
    if has_max && default > max {
        return check.refuse(&at, "`default` must not be larger than `max`");
    }
    can_be_granted(check, default, limiters, &at).then_some((default, max))
}

/// Checks the largest cost of a request, by default the largest one that its limiters can grant.
fn cost_max(check: &mut Check<'_>, given: &Given<'_, Option<i64>>, limiters: &[&Keyed]) -> Option<Permits> {
    // A limiter in shadow mode bounds no cost.
    let enforced = limiters.iter().filter(|(limiter, _)| limiter.mode == Mode::Enforce);
    let grantable = enforced.map(|(limiter, _)| limiter.cost_max_anywhere()).min();
    let max = given.checked(|_| permits(check, given))?;
    max.or(grantable).or_else(|| Permits::new(RATE_MAX.into()))
}

/// Checks the largest estimate. One that nobody wrote need not suit every partition: an estimate is cut to what its own can grant.
fn estimate_max(
    check: &mut Check<'_>,
    given: &Given<'_, Option<i64>>,
    limiters: &[&Keyed],
) -> Option<Permits> {
    let max = cost_max(check, given, limiters)?;
    if given.value.is_some() {
        return can_be_granted(check, max, limiters, &given.at).then_some(max);
    }
    limiters.iter().for_each(|(limiter, _)| warn_of_ceilings(check, max, limiter, &given.at));
    Some(max)
}

/// Returns whether every limiter, with all its overrides, can grant a cost at once; reports the first one that cannot. Such a cost would
/// refuse every request.
fn can_be_granted(check: &mut Check<'_>, cost: Permits, limiters: &[&Keyed], at: &At<'_>) -> bool {
    let mut all = limiters.iter().flat_map(|(limiter, _)| {
        let lowest = limiter.overrides().min_by_key(|it| (it.cost_max(), it.value().cloned()));
        [limiter].into_iter().chain(lowest)
    });
    let Some(limiter) = all.find(|limiter| cost > limiter.cost_max()) else {
        limiters.iter().for_each(|(limiter, _)| warn_of_ceilings(check, cost, limiter, at));
        return true;
    };
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

/// Warns of a cost that some classes of a limiter can never be granted, because of a ceiling, or of the floor of another class.
fn warn_of_ceilings(check: &mut Check<'_>, cost: Permits, limiter: &Limiter, at: &At<'_>) {
    let Some(share) = limiter.share() else { return };
    for bound in share.bounds().iter().filter(|bound| cost > limiter.cost_max_within(bound)) {
        let classes: Vec<_> = bound.classes.iter().map(|class| quoted(&share.classes[*class].name)).collect();
        let message = format!(
            "larger than limiter {} can ever grant to {}, by {}: {} at once; their requests are refused",
            quoted(limiter.name.as_str()),
            classes.join(" and "),
            quoted(&bound.name),
            limiter.cost_max_within(bound),
        );
        check.warn(at, message);
    }
}

/// Checks a number of permits, by default 1.
fn permits(check: &mut Check<'_>, given: &Given<'_, Option<i64>>) -> Option<Permits> {
    check.count(given, 1, 1..=RATE_MAX).and_then(|count| Permits::new(count.into()))
}
