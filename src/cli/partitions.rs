//! The partitions of a limiter that used most and waited longest, as `weir limiters NAME --top` prints them.

use serde_json::Value;

use super::shares::waited;
use super::table::plain;

/// Returns a table of the partitions that used most, and one of those that waited longest.
pub(super) fn tables(limiter: &Value) -> Vec<Vec<Vec<String>>> {
    let lists = [("used", "USED MOST"), ("waited", "WAITED LONGEST")];
    let table = |(list, head): (&str, &str)| {
        let head = [head, "GRANTED", "LONGEST WAIT", "LEFT", "OF LIMIT"].map(str::to_owned).to_vec();
        let rows = limiter["top"][list].as_array().into_iter().flatten().map(row);
        std::iter::once(head).chain(rows).collect()
    };
    lists.map(table).into()
}

fn row(partition: &Value) -> Vec<String> {
    let name = if partition["value"].is_null() { &partition["partition"] } else { &partition["value"] };
    let granted = match partition["granted_error"].as_u64() {
        // It may be too much.
        Some(error) if error > 0 => format!("{} (-{error})", plain(&partition["granted"])),
        _ => plain(&partition["granted"]),
    };
    vec![plain(name), granted, waited(partition), plain(&partition["available"]), plain(&partition["limit"])]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn partitions_are_named_by_their_value_or_their_hash() {
        let one = json!({"partition": "0a", "value": "acme", "granted": 7, "granted_error": 2, "longest_wait_ms": 1240,
            "limit": "9/1s", "rate": 9, "available": 1, "told_ms_ago": 12});
        let other = json!({"partition": "0b", "value": null, "granted": 3, "granted_error": 0, "longest_wait_ms": 0,
            "limit": null, "rate": null, "available": null, "told_ms_ago": null});
        let tables = tables(&json!({"top": {"seconds": 300, "used": [one, other], "waited": []}}));
        assert_eq!(tables[0][1], ["acme", "7 (-2)", "1.2s", "1", "9/1s"]);
        assert_eq!(tables[0][2], ["0b", "3", "-", "-", "-"]);
        assert_eq!(tables[1].len(), 1);
    }
}
