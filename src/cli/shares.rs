//! How callers share limiters, as `weir limiters` prints it.

use std::time::Duration;

use serde_json::Value;

use super::table::plain;

/// Returns a table of the classes of all shared limiters in an answer, and one of the flows that wait longest. Without them, none.
pub(super) fn tables(limiters: &[Value]) -> Vec<Vec<Vec<String>>> {
    let shared = || limiters.iter().filter(|limiter| limiter["share"].is_object());
    let items = |key: &'static str| {
        shared().flat_map(move |limiter| {
            let items = limiter["share"][key].as_array().into_iter().flatten();
            items.map(move |item| (&limiter["name"], item))
        })
    };
    let classes = items("classes").map(|(limiter, class)| {
        let columns = [limiter, &class["class"], &class["waiting"]].map(plain).into_iter();
        let rest = [&class["granted"], &class["refused"]].map(plain);
        let bounds = [&class["floor"], &class["ceiling"]].map(percent);
        columns.chain([waited(class)]).chain(rest).chain(bounds).collect()
    });
    let flows = items("flows").map(|(limiter, flow)| {
        let name = if flow["name"].is_null() { &flow["flow"] } else { &flow["name"] };
        let columns = [limiter, name, &flow["class"], &flow["waiting"]].map(plain).into_iter();
        columns.chain([waited(flow)]).collect()
    });
    let head = |head: &[&str]| vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    let mut of_classes =
        head(&["LIMITER", "CLASS", "WAITING", "LONGEST WAIT", "GRANTED", "REFUSED", "FLOOR", "CEILING"]);
    of_classes.extend(classes);
    let mut of_flows = head(&["LIMITER", "CALLER", "CLASS", "WAITING", "LONGEST WAIT"]);
    of_flows.extend(flows);
    [of_classes, of_flows].into_iter().filter(|table: &Vec<_>| table.len() > 1).collect()
}

/// Formats the longest wait of something.
pub(super) fn waited(of: &Value) -> String {
    let waited = of["longest_wait_ms"].as_u64().filter(|millis| *millis > 0);
    waited.map_or_else(
        || "-".to_owned(),
        |millis| format!("{:.1}s", Duration::from_millis(millis).as_secs_f64()),
    )
}

fn percent(part: &Value) -> String {
    part.as_f64().map_or_else(|| "-".to_owned(), |part| format!("{}%", (part * 1e6).round() / 1e4))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_and_the_flows_that_wait_have_a_table_each() {
        let class = |name: &str, floor: Option<f64>, waiting: u32| json!({"class": name, "floor": floor, "ceiling": null, "waiting": waiting, "longest_wait_ms": 1240, "granted": 7, "refused": 1});
        let flow = |name: Option<&str>| json!({"name": name, "flow": "00c0ffee00000", "class": "batch", "waiting": 3, "longest_wait_ms": 0});
        let share = json!({
            "classes": [class("interactive", Some(0.2), 0), class("batch", None, 6)],
            "flows": [flow(Some("etl")), flow(None)],
        });
        let tables =
            tables(&[json!({"name": "api", "share": share}), json!({"name": "other", "share": null})]);
        assert_eq!(tables[0][1], ["api", "interactive", "0", "1.2s", "7", "1", "20%", "-"]);
        assert_eq!(tables[0][2], ["api", "batch", "6", "1.2s", "7", "1", "-", "-"]);
        assert_eq!(
            tables[1][1..],
            [
                ["api", "etl", "batch", "3", "-"].map(str::to_owned).to_vec(),
                ["api", "00c0ffee00000", "batch", "3", "-"].map(str::to_owned).to_vec(),
            ]
        );
        assert_eq!(tables.len(), 2);
        assert!(super::tables(&[json!({"name": "other", "share": null})]).is_empty());
    }
}
