//! `/api/usage`: who has used what, in the whole fleet, by hour or day.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use url::form_urlencoded;

use super::response::{self, Response};
use crate::usage::{By, Counts, KEPT_FOR, Per, Recorder};

/// The question that a query asks.
struct UsageQuery {
    by: By,
    per: Per,
    /// From the period that holds the first instant to the one that holds the second, in seconds since the Unix epoch.
    range: Option<(u64, u64)>,
}

/// Answers with the counts of the period that runs, or of a range: `by=client|route|limiter`, `per=1h|1d`, `from=` and `to=` (RFC 3339).
pub(super) async fn show(recorder: &Recorder, query: Option<&str>) -> Response {
    let UsageQuery { by, per, range } = match parse(query.unwrap_or_default(), recorder.now_us() / 1_000_000)
    {
        Ok(parsed) => parsed,
        Err(detail) => return response::problem(StatusCode::BAD_REQUEST, &detail),
    };
    let report = match recorder.read(by, per, range).await {
        Ok(report) => report,
        Err(error) => {
            let detail = format!("the fleet's counts cannot be read: {error}");
            return response::problem(StatusCode::SERVICE_UNAVAILABLE, &detail);
        }
    };
    let rows = report.rows.iter().map(|row| {
        let Counts { granted, refused, waited, cancelled } = row.counts;
        let mut document = Map::new();
        document.insert(by.as_str().to_owned(), (*row.name).into());
        document.insert("from".to_owned(), time(row.from * 1_000_000));
        for (name, count) in
            [("granted", granted), ("refused", refused), ("waited", waited), ("cancelled", cancelled)]
        {
            document.insert(name.to_owned(), count.into());
        }
        Value::Object(document)
    });
    response::document(&json!({
        "by": by.as_str(),
        "per": per.as_str(),
        // From when on the counts are whole.
        "since": time(report.since_us),
        "usage": rows.collect::<Vec<_>>(),
    }))
}

/// Reads a query. `now` is in seconds since the Unix epoch.
fn parse(query: &str, now: u64) -> Result<UsageQuery, String> {
    let mut parsed = UsageQuery { by: By::Client, per: Per::Hour, range: None };
    let (mut from, mut to) = (None, None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let instant = || {
            let instant =
                value.parse::<Timestamp>().ok().and_then(|time| u64::try_from(time.as_second()).ok());
            instant.ok_or_else(|| format!("{key} must be an instant such as 2026-11-25T18:00:00Z"))
        };
        match &*key {
            "by" => parsed.by = By::named(&value).ok_or("by must be client, route or limiter")?,
            "per" => parsed.per = Per::named(&value).ok_or("per must be 1h or 1d")?,
            "from" => from = Some(instant()?),
            "to" => to = Some(instant()?),
            _ => return Err(format!("{key} is not known; known: by, per, from, to")),
        }
    }
    if from.is_some() || to.is_some() {
        let (from, to) = (from.unwrap_or(now), to.unwrap_or(now).min(now));
        if from > to {
            return Err("from must not be later than to, or than now".to_owned());
        }
        parsed.range = Some((from.max(now.saturating_sub(KEPT_FOR.as_secs())), to));
    }
    Ok(parsed)
}

fn time(unix_us: u64) -> Value {
    let time = i64::try_from(unix_us).ok().and_then(|unix_us| Timestamp::from_microsecond(unix_us).ok());
    time.map_or(Value::Null, |time| format!("{time:.0}").into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;

    use super::*;
    use crate::usage::{MemoryUsage, Usage};

    #[test]
    fn a_query_names_the_periods() {
        let now = 1_800_000_000;
        let read = |query: &str| parse(query, now).map(|parsed| (parsed.by, parsed.per, parsed.range));
        assert_eq!(read(""), Ok((By::Client, Per::Hour, None)));
        assert_eq!(read("by=route&per=1d"), Ok((By::Route, Per::Day, None)));
        assert_eq!(read("from=2027-01-15T06:00:00Z"), Ok((By::Client, Per::Hour, Some((now - 7200, now)))));
        assert_eq!(
            read("from=2027-01-15T06:00:00Z&to=2027-01-15T07:00:00%2B00:00"),
            Ok((By::Client, Per::Hour, Some((now - 7200, now - 3600))))
        );
        // No further back than is kept.
        assert_eq!(read("from=2001-01-01T00:00:00Z").unwrap().2, Some((now - KEPT_FOR.as_secs(), now)));
        for wrong in ["by=tenant", "per=1m", "from=yesterday", "since=1", "from=2027-01-15T09:00:00Z"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_row_has_its_name_and_its_counts() {
        let usage = Usage::default();
        let recorder = Recorder::new(usage.clone(), Arc::new(MemoryUsage::default()), Arc::default());
        let counts = Counts { granted: 5, refused: 1, waited: 3, cancelled: 2 };
        usage.counters(By::Limiter, &"github".into()).add(counts);
        let answer = show(&recorder, Some("by=limiter&per=1d")).await;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let document: Value = serde_json::from_slice(&body).unwrap();
        let row = &document["usage"][0];
        let day = row["from"].as_str().unwrap();
        assert!(day.ends_with("T00:00:00Z"), "{day}");
        assert_eq!(
            *row,
            json!({
                "limiter": "github", "from": day, "granted": 5, "refused": 1, "waited": 3, "cancelled": 2
            })
        );
        assert!(document["since"].as_str().unwrap().parse::<Timestamp>().is_ok(), "{document}");
    }
}
