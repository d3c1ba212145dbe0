//! `limiters.NAME.pause`: which responses of an upstream pause a limiter, and for how long.

use std::sync::Arc;
use std::time::Duration;

use super::check::{Check, DAY, MILLISECOND};
use super::headers::{Purpose, headers};
use super::json::json_values;
use super::place::{Given, all, key};
use crate::config::model::PauseRule;
use crate::config::schema::{self, OffOr};
use crate::limiter::model::limit::PausePolicy;

/// The most rules. Each response is held against all of them.
const RULES_MAX: usize = 16;

/// How long pauses last, and the rules by which a response begins one; no policy and no rules where none does.
type Pauses = (Option<PausePolicy>, Arc<[PauseRule]>);

/// Checks how upstream rejections pause.
pub(super) fn pause(
    check: &mut Check<'_>,
    given: &Given<'_, Option<OffOr<schema::Pause>>>,
) -> Option<Pauses> {
    let usual = PausePolicy::default();
    if given.value.is_none() {
        return Some((Some(usual), PauseRule::usual()));
    }
    let Some(pause) = given.on() else { return Some((None, [].into())) };
    let max = check.bounded(&key!(pause.max), usual.max, MILLISECOND..=DAY);
    let guess = match key!(pause.guess).get() {
        None => Some((usual.guess_first, usual.guess_max)),
        Some(guess) => guessed(check, &guess, &usual),
    };
    let rules = rules(check, &key!(pause.rules), max);
    let (max, (guess_first, guess_max)) = (max?, guess?);
    Some((Some(PausePolicy { max, guess_first, guess_max }), rules?))
}

/// Checks the first and the longest pause whose end the upstream does not name.
fn guessed(
    check: &mut Check<'_>,
    guess: &Given<'_, schema::Guess>,
    usual: &PausePolicy,
) -> Option<(Duration, Duration)> {
    let first = key!(guess.first).checked(|first| check.within(&first, MILLISECOND..=DAY));
    let max = key!(guess.max).checked(|max| check.within(&max, MILLISECOND..=DAY));
    match (first?, max?) {
        (Some(first), Some(max)) if first > max => {
            check.refuse(&key!(guess.first).at, "must not be longer than `max`")
        }
        (first, max) => {
            let longest = max.unwrap_or_else(|| usual.guess_max.max(first.unwrap_or_default()));
            Some((first.unwrap_or_else(|| usual.guess_first.min(longest)), longest))
        }
    }
}

fn rules(
    check: &mut Check<'_>,
    given: &Given<'_, Option<Vec<schema::PauseRule>>>,
    max: Option<Duration>,
) -> Option<Arc<[PauseRule]>> {
    if given.value.is_none() {
        return Some(PauseRule::usual());
    }
    match given.at.length() {
        0 => return check.refuse(&given.at, "names nothing to pause on; `pause: off` does that"),
        1..=RULES_MAX => {}
        _ => return check.refuse(&given.at, format!("has more than {RULES_MAX} rules")),
    }
    all(given.items().map(|rule| one(check, &rule, max))).map(|rules: Vec<_>| rules.into())
}

fn one(
    check: &mut Check<'_>,
    rule: &Given<'_, schema::PauseRule>,
    max: Option<Duration>,
) -> Option<PauseRule> {
    let status = key!(rule.status);
    let code = u16::try_from(*status.value).ok().filter(|code| (200..600).contains(code));
    let code = code.or_else(|| check.refuse(&status.at, "must be a status from 200 to 599"));
    let headers = headers(check, &key!(rule.header), Purpose::Match);
    let json = key!(rule.json).checked(|json| json_values(check, &json));
    let lasting = rule.part(&rule.value.lasting, "for").checked(|lasting| {
        let at = lasting.at.clone();
        let lasting = check.within(&lasting, MILLISECOND..=DAY)?;
        match max {
            Some(max) if lasting > max => check.refuse(&at, "must not be longer than `max`"),
            _ => Some(lasting),
        }
    });
    let named = rule.value.named.unwrap_or(false);
    Some(PauseRule {
        status: code?,
        named,
        headers: headers?,
        json: json?.unwrap_or_default(),
        lasting: lasting?,
    })
}
