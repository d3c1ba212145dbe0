//! Estimates what a request costs from its body. Decides nothing about limits.

use super::body_facts::{Body, Content};
use crate::config::model::{Estimate, JsonPath};
use crate::config::units;
use crate::limiter::model::Permits;
use crate::proxy::error::ProxyError;

/// The bounds of an estimate that the partition of the request has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bounds {
    /// The output that most responses did not exceed, if that is known.
    pub(crate) learned: Option<u64>,
    /// The most that can be granted at once.
    pub(crate) grantable: Option<Permits>,
}

/// Returns the estimate of a request with this body. One without a body costs one permit.
///
/// # Errors
/// If a number can be read in more than one way.
pub(crate) fn estimate(body: Body<'_>, rule: &Estimate, bounds: Bounds) -> Result<Permits, ProxyError> {
    let input = match body.content() {
        Content::Nothing | Content::Unread => return Ok(Permits::ONE),
        Content::Length(bytes) => of_bytes(bytes, rule),
        Content::Json(bytes) => input(body, bytes, rule),
    };
    let output = match first(body, &rule.first_of)? {
        _ if rule.first_of.is_empty() && rule.otherwise == 0 => 0,
        output => output.unwrap_or(rule.otherwise.into()),
    };
    let times = first(body, &rule.times_first_of)?.unwrap_or(1).max(1);
    let output = output.saturating_mul(times).min(bounds.learned.unwrap_or(u64::MAX));
    let all = rule.combine.of(input, output);
    let max = bounds.grantable.map_or(rule.max, |grantable| grantable.min(rule.max));
    Ok(Permits::new(all.clamp(1, max.get())).unwrap_or(max))
}

/// Returns the permits of the parts that count, or of the whole where none of them is there.
fn input(body: Body<'_>, bytes: u64, rule: &Estimate) -> u64 {
    let mut sizes = rule.of.iter().filter_map(|path| body.size(path)).peekable();
    if sizes.peek().is_none() {
        return of_bytes(bytes, rule);
    }
    let (bytes, images) =
        sizes.fold((0, 0), |(bytes, images), size| (bytes + size.bytes, images + size.images));
    of_bytes(bytes, rule).saturating_add(images.saturating_mul(rule.image.into()))
}

fn of_bytes(bytes: u64, rule: &Estimate) -> u64 {
    bytes.div_ceil(rule.bytes_per_permit.max(1).into())
}

/// Returns the first number at any of the paths.
fn first(body: Body<'_>, paths: &[JsonPath]) -> Result<Option<u64>, ProxyError> {
    for path in paths {
        if let Some(number) = body.useful(path)?.and_then(units::number) {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::model::{Combine, Learn};
    use crate::proxy::messages::body_facts::{BodyFacts, BodyPaths};

    fn rule(combine: Combine, max: u64) -> Estimate {
        let paths = |texts: &[&str]| texts.iter().map(|text| JsonPath::parse(text).unwrap()).collect();
        Estimate {
            bytes_per_permit: 3,
            of: paths(&["messages"]),
            image: 1000,
            first_of: paths(&["max_completion_tokens", "max_tokens"]),
            otherwise: 500,
            times_first_of: paths(&["n"]),
            combine,
            max: Permits::new(max).unwrap(),
            learn: Learn::Off,
        }
    }

    fn estimated(body: &str, rule: &Estimate, learned: Option<u64>) -> u64 {
        within(body, rule, Bounds { learned, grantable: None })
    }

    fn within(body: &str, rule: &Estimate, bounds: Bounds) -> u64 {
        let mut paths = BodyPaths::default();
        rule.values().for_each(|path| paths.add_value(path));
        paths.add_texts(&rule.of);
        let facts = BodyFacts::of(body.as_bytes(), "", 1_000_000, &Arc::new(paths));
        estimate(facts.up_to(1_000_000), rule, bounds).unwrap().get()
    }

    #[test]
    fn an_estimate_is_of_what_goes_in_and_comes_out() {
        let rule = rule(Combine::Sum, 100_000);
        let text = "x".repeat(300);
        for (body, expected) in [
            (format!(r#"{{"messages": "{text}", "max_tokens": 20}}"#), 120),
            (format!(r#"{{"messages": "{text}", "max_tokens": 20, "n": 3}}"#), 160),
            (format!(r#"{{"messages": "{text}", "max_tokens": 20, "max_completion_tokens": 7}}"#), 107),
            (format!(r#"{{"messages": "{text}", "max_tokens": "many", "other": "{text}"}}"#), 600),
            // No JSON, or none of the parts: the whole of it.
            (format!("{{{text}"), 601),
            (format!(r#"{{"prompts": "{text}"}}"#), 605),
        ] {
            assert_eq!(estimated(&body, &rule, None), expected, "{body}");
        }
        assert_eq!(estimate(BodyFacts::nothing().up_to(10), &rule, Bounds::default()).unwrap(), Permits::ONE);
        assert_eq!(
            estimate(BodyFacts::unlooked(30_000).up_to(10), &rule, Bounds::default()).unwrap().get(),
            10_500
        );
    }

    #[test]
    fn an_output_is_no_more_than_what_was_learnt() {
        let rule = rule(Combine::Output, 100_000);
        for (body, learned, expected) in [
            (r#"{"max_tokens": 4000}"#, Some(300), 300),
            (r#"{"max_tokens": 40, "n": 2}"#, Some(300), 80),
            (r#"{"max_tokens": 4000}"#, None, 4000),
        ] {
            assert_eq!(estimated(body, &rule, learned), expected, "{body}");
        }
    }

    #[test]
    fn an_estimate_is_cut_and_combined() {
        let body = format!(r#"{{"messages": "{}", "max_tokens": 200}}"#, "x".repeat(300));
        for (combine, max, expected) in [
            (Combine::Max, 1000, 200),
            (Combine::Input, 1000, 100),
            (Combine::Output, 1000, 200),
            (Combine::Sum, 250, 250),
        ] {
            assert_eq!(estimated(&body, &rule(combine, max), None), expected);
        }
        for (grantable, expected) in [(100, 100), (1000, 250)] {
            let bounds = Bounds { learned: None, grantable: Permits::new(grantable) };
            assert_eq!(within(&body, &rule(Combine::Sum, 250), bounds), expected, "{grantable}");
        }
        let lie = r#"{"messages": "x", "max_tokens": 18446744073709551615, "n": 1000}"#;
        assert_eq!(estimated(lie, &rule(Combine::Sum, 1000), None), 1000);
    }
}
