//! `limiters.NAME.share`: classes, weights, floors and ceilings; and whether the routes of a limiter can share it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::check::{Check, DAY, MILLISECOND, NAME_EXPECTED};
use super::clients::warn_of_strangers;
use super::place::{At, Given, all, key};
use crate::config::model::{JsonPath, KeyPart};
use crate::config::problem::quoted;
use crate::config::schema;
use crate::config::schema::share::{Class, ClassQueue, OneOrMore, QuotaShare as Written};
use crate::config::units::{Share, show_share};
use crate::limiter::model::limit::{Algorithm, Limit, LimiterName, QueueLimits};
use crate::limiter::model::{CLASSES_MAX, Class as ValidClass, ClassMember, Flow, QuotaShare, WEIGHT_MAX};

/// The most parts of `by`.
const PARTS_MAX: usize = 4;
/// The most callers with a class or a weight of their own.
const MEMBERS_MAX: usize = 10_000;
/// The name of the only class, where none is given.
const ALL: &str = "all";
/// The bounds and the default of `ahead`.
const AHEAD_MIN: Duration = Duration::from_millis(50);
const AHEAD_MAX: Duration = Duration::from_secs(1);
const AHEAD: Duration = Duration::from_millis(250);

/// A share, and what names its flows.
pub(super) type Sharing = (QuotaShare, Arc<[By]>);

/// The parts of a request that name its flow, but for the route, which has its own name.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum By {
    /// A part of the request.
    Part(KeyPart),
    /// The name of its route.
    Route,
}

impl By {
    /// Returns the path of the value of a JSON body.
    pub(super) fn json_path(&self) -> Option<&JsonPath> {
        match self {
            By::Part(part) => part.json_path(),
            By::Route => None,
        }
    }
}

/// Checks how callers share a limiter. The outer `None` is a problem, the inner one no share.
pub(super) fn share(
    check: &mut Check<'_>,
    limiter: &Given<'_, schema::Limiter>,
    (limits, queue): (Option<&[Limit]>, Option<&QueueLimits>),
    clients: Option<&HashSet<&str>>,
) -> Option<Option<Sharing>> {
    let Some(given) = key!(limiter.share).get() else { return Some(None) };
    if matches!(limiter.value.mode, Some(schema::Mode::Shadow)) {
        return check
            .refuse_key(&given.at, "not with `mode: shadow`: a limiter that only counts shares nothing out");
    }
    if key!(limiter.queue).on().is_none() {
        return check.refuse_key(&given.at, "only with `queue`: those who wait go by their shares");
    }
    let by = by(check, &key!(given.by), clients.is_some());
    let is_client = by.as_ref().and_then(|by| by.first()) == Some(&By::Part(KeyPart::Client));
    warn_of_strangers(check, clients.filter(|_| is_client), callers(&given));
    let ahead = check.bounded(&key!(given.ahead), AHEAD, AHEAD_MIN..=AHEAD_MAX);
    let classes = classes(check, &given, limits, queue);
    let members = members(check, &given);
    let names = Arc::new(names(&given, by.as_ref(), clients));
    let share = QuotaShare { classes: classes?, members: Arc::new(members?), names, ahead: ahead? };
    warn_of_spent_windows(check, &given.at, &share, limits?);
    Some(Some((share, by?)))
}

fn by(check: &mut Check<'_>, given: &Given<'_, OneOrMore>, has_clients: bool) -> Option<Arc<[By]>> {
    match given.value {
        OneOrMore::One(part) => Some([one_by(check, part, &given.at, has_clients)?].into()),
        OneOrMore::More(parts) => {
            if !(1..=PARTS_MAX).contains(&parts.len()) {
                return check
                    .refuse(&given.at, format!("needs 1 to {PARTS_MAX} parts, such as header:x-team"));
            }
            let parts = Given::new(parts, given.at.clone());
            let parts: Vec<By> =
                all(parts.items().map(|part| one_by(check, part.value, &part.at, has_clients)))?;
            let is_twice = parts.iter().enumerate().any(|(place, part)| parts[..place].contains(part));
            if is_twice { check.refuse(&given.at, "names a part twice") } else { Some(parts.into()) }
        }
    }
}

fn one_by(check: &mut Check<'_>, part: &str, at: &At<'_>, has_clients: bool) -> Option<By> {
    let read = match part.split_once(':') {
        None if part == "route" => Some(By::Route),
        None if part == "client" && !has_clients => {
            let message = "`client` needs `clients` at the top of the file, which identify callers";
            return check.refuse(at, message);
        }
        None if part == "client" => Some(By::Part(KeyPart::Client)),
        Some(("header", name)) => HeaderName::try_from(name).ok().map(|name| By::Part(KeyPart::Header(name))),
        Some(("query", name)) if !name.is_empty() => Some(By::Part(KeyPart::Query(name.into()))),
        Some(("json", path)) => JsonPath::parse(path).map(|path| By::Part(KeyPart::Json(path))),
        _ => None,
    };
    read.or_else(|| check.refuse(at, "expected client, header:NAME, query:NAME, json:PATH or route"))
}

fn classes(
    check: &mut Check<'_>,
    given: &Given<'_, Written>,
    limits: Option<&[Limit]>,
    queue: Option<&QueueLimits>,
) -> Option<Arc<[ValidClass]>> {
    let classes = key!(given.classes);
    let Some(list) = classes.get() else {
        let class = ValidClass { name: ALL.into(), floor_ppm: 0, ceiling_ppm: None, queue: *queue? };
        return Some([class].into());
    };
    if !(1..=CLASSES_MAX).contains(&list.at.length()) {
        return check.refuse(&list.at, format!("needs 1 to {CLASSES_MAX} classes"));
    }
    let last = list.at.length() - 1;
    let mut valid: Vec<ValidClass> = Vec::new();
    let mut is_sound = true;
    for (place, class) in list.items().enumerate() {
        if place < last && class.value.of.as_ref().is_none_or(Vec::is_empty) {
            check.problem(
                &class.at,
                "nobody can be in it: name its callers in `of`; only the last class holds all others",
            );
            is_sound = false;
        }
        if valid.iter().any(|earlier| *earlier.name == *class.value.name) {
            check.problem(&key!(class.name).at, "another class has this name");
            is_sound = false;
        }
        match one_class(check, &class, limits, queue) {
            Some(class) => valid.push(class),
            None => is_sound = false,
        }
    }
    // All were faulty, which has been reported.
    if valid.is_empty() {
        return None;
    }
    let floors: u32 = valid.iter().map(|class| class.floor_ppm).sum();
    if floors >= Share::WHOLE.ppm {
        return check.refuse(&list.at, "the floors together must be less than 100%");
    }
    is_sound.then(|| valid.into())
}

fn one_class(
    check: &mut Check<'_>,
    class: &Given<'_, Class>,
    limits: Option<&[Limit]>,
    queue: Option<&QueueLimits>,
) -> Option<ValidClass> {
    let name = key!(class.name);
    if LimiterName::parse(name.value).is_none() {
        return check.refuse(&name.at, NAME_EXPECTED);
    }
    let floor = key!(class.floor);
    let has_none = floor.value.as_ref().is_some_and(|schema::forms::Text(part)| part.ppm == 0);
    let rest = |part: Share| Share { ppm: Share::WHOLE.ppm.saturating_sub(part.ppm) };
    let floor = if has_none { Some(None) } else { part(check, &floor, limits, rest) };
    let ceiling = part(check, &key!(class.ceiling), limits, |part| part);
    let queue = match (key!(class.queue).get(), queue) {
        (None, queue) => queue.copied(),
        (Some(own), queue) => class_queue(check, &own, queue),
    };
    let (floor, ceiling) = (floor?, ceiling?.filter(|part| *part < Share::WHOLE));
    Some(ValidClass {
        name: name.value.as_str().into(),
        floor_ppm: floor.unwrap_or(Share::NONE).ppm,
        ceiling_ppm: ceiling.map(|part| part.ppm),
        queue: queue?,
    })
}

/// Checks a part of each window, what of it is left to whom it bounds being a permit of each limit at least. The outer `None` is a problem,
/// the inner one nothing given.
fn part(
    check: &mut Check<'_>,
    given: &Given<'_, Option<schema::forms::Text<Share>>>,
    limits: Option<&[Limit]>,
    bound: impl Fn(Share) -> Share,
) -> Option<Option<Share>> {
    let Some(schema::forms::Text(share)) = given.value else { return Some(None) };
    if share.ppm == 0 || *share > Share::WHOLE {
        return check.refuse(&given.at, "must be above 0% and at most 100%");
    }
    let bound = bound(*share);
    let too_small = limits.unwrap_or_default().iter().find(|limit| is_less_than_a_permit(limit, bound.ppm));
    if let Some(limit) = too_small {
        let (limit, left) = (quoted(&limit.label), show_share(bound));
        return check.refuse(&given.at, format!("leaves {left} of {limit}, which is less than one permit"));
    }
    Some(Some(*share))
}

/// Returns whether a part of a limit, in millionths, has no whole permit.
pub(super) fn is_less_than_a_permit(limit: &Limit, ppm: u32) -> bool {
    u128::from(limit.rate.get()) * u128::from(ppm) < 1_000_000
}

fn class_queue(
    check: &mut Check<'_>,
    given: &Given<'_, ClassQueue>,
    queue: Option<&QueueLimits>,
) -> Option<QueueLimits> {
    let timeout = key!(given.timeout).checked(|timeout| check.within(&timeout, MILLISECOND..=DAY));
    let most = queue.map_or(1, |queue| queue.max_waiting);
    let max_waiting = check.count(&key!(given.max_waiting), most, 1..=1_000_000);
    Some(QueueLimits { timeout: timeout?.or(queue.map(|queue| queue.timeout))?, max_waiting: max_waiting? })
}

/// Returns the first values of flows that the configuration has, and a name for a missing one, by their hashes; none that may be a secret.
fn names(
    given: &Given<'_, Written>,
    by: Option<&Arc<[By]>>,
    clients: Option<&HashSet<&str>>,
) -> HashMap<u64, Arc<str>> {
    let first = by.and_then(|by| by.first());
    let is_hidden = matches!(first, Some(By::Part(part)) if part.is_credential());
    let of = key!(given.classes).items().flat_map(|class| key!(class.of).items());
    let of = of.filter(|value| !value.at.is_interpolated()).map(|value| value.value.as_str());
    let named = of.chain(key!(given.weights).at.names()).filter(|_| !is_hidden);
    let is_client = first == Some(&By::Part(KeyPart::Client));
    let clients = clients.filter(|_| is_client).into_iter().flatten().copied();
    let named = named.chain(clients).map(|name| (Flow::member_of(name), name.into()));
    named.chain([(Flow::of(&[None]).member, "none".into())]).collect()
}

/// Returns the callers that the file names, with their places; none whose name may be a secret.
fn callers<'a>(given: &Given<'a, Written>) -> impl Iterator<Item = (&'a str, At<'a>)> {
    let of = key!(given.classes).items().flat_map(|class| key!(class.of).items().collect::<Vec<_>>());
    let of = of.filter(|value| !value.at.is_interpolated()).map(|value| (value.value.as_str(), value.at));
    let weights = key!(given.weights).get().into_iter();
    let weights = weights.flat_map(|list| list.entries().collect::<Vec<_>>());
    of.chain(weights.map(|(name, weight)| (name, weight.at)))
}

/// Returns the callers that have a class or a weight of their own.
fn members(check: &mut Check<'_>, given: &Given<'_, Written>) -> Option<HashMap<u64, ClassMember>> {
    let classes = given.value.classes.as_deref().unwrap_or_default();
    let last = classes.len().saturating_sub(1);
    let mut members: HashMap<u64, ClassMember> = HashMap::new();
    let mut is_sound = true;
    for (place, class) in
        key!(given.classes).get().into_iter().flat_map(|list| list.items().enumerate().collect::<Vec<_>>())
    {
        let Some(of) = key!(class.of).get() else { continue };
        for value in of.items() {
            let member = ClassMember { class: place, weight: 1 };
            if members.insert(Flow::member_of(value.value), member).is_some() {
                check.problem(&value.at, "is in two classes, or in one twice");
                is_sound = false;
            }
        }
    }
    for (value, weight) in
        key!(given.weights).get().into_iter().flat_map(|list| list.entries().collect::<Vec<_>>())
    {
        let Some(valid) = u64::try_from(*weight.value).ok().filter(|it| (1..=WEIGHT_MAX).contains(it)) else {
            check.problem(&weight.at, format!("must be 1 to {WEIGHT_MAX}"));
            is_sound = false;
            continue;
        };
        let other = ClassMember { class: last, weight: 1 };
        members.entry(Flow::member_of(value)).or_insert(other).weight = valid;
    }
    if members.len() > MEMBERS_MAX {
        return check.refuse(&given.at, format!("names more than {MEMBERS_MAX} callers"));
    }
    is_sound.then_some(members)
}

/// Warns where the first class cannot be helped: a window that others have spent is spent.
fn warn_of_spent_windows(check: &mut Check<'_>, at: &At<'_>, share: &QuotaShare, limits: &[Limit]) {
    let wait = share.classes[0].queue.timeout.min(Duration::from_secs(10));
    let is_even =
        |limit: &Limit| matches!(limit.algorithm, Algorithm::LeakyBucket | Algorithm::WarmUp { .. });
    let long = limits.iter().find(|limit| limit.per > wait && !is_even(limit));
    let has_bounds = !share.bounds().is_empty() || limits.iter().any(is_even);
    if let Some(limit) = long.filter(|_| share.classes.len() > 1 && !has_bounds) {
        let limit = quoted(&limit.label);
        check.warn(
            at,
            format!(
                "the first class waits for the end of the window of {limit} where others have spent it: give it a \
                 `floor`, the others a `ceiling`, or space the limit evenly (`algorithm: leaky_bucket`)"
            ),
        );
    }
}
