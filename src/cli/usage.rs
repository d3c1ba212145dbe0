//! `weir usage`: who has used what, in the whole fleet, as a table, CSV or JSON.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use url::form_urlencoded;

use super::remote::{Remote, RemoteError};
use super::table::{aligned, plain};

/// The columns behind the name.
const COUNTS: [&str; 4] = ["granted", "refused", "waited", "cancelled"];

/// The question, and the form of the answer.
#[derive(Debug, Args)]
pub struct UsageArguments {
    /// Divide the use by client, route or limiter
    #[arg(long, value_parser = ["client", "route", "limiter"], default_value = "client")]
    by: String,
    /// Count by hour or by day, in UTC
    #[arg(long, value_parser = ["1h", "1d"], default_value = "1h")]
    per: String,
    /// From the hour or day that holds this instant, such as 2026-11-25T08:00:00Z; 35 days are kept
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// To the hour or day that holds this instant; without both, the hour or day that runs
    #[arg(long, value_name = "INSTANT")]
    to: Option<String>,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// The running weir
    #[command(flatten)]
    remote: Remote,
}

/// Asks for the use and prints it.
///
/// # Errors
/// If there is no answer, or it cannot be printed.
pub async fn run(arguments: UsageArguments) -> Result<ExitCode, RemoteError> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("by", &arguments.by).append_pair("per", &arguments.per);
    for (name, instant) in [("from", &arguments.from), ("to", &arguments.to)] {
        if let Some(instant) = instant {
            query.append_pair(name, instant);
        }
    }
    let answer = arguments.remote.get(&format!("/api/usage?{}", query.finish())).await?;
    let mut output = std::io::stdout().lock();
    if arguments.remote.wants_json() {
        writeln!(output, "{answer:#}")?;
    } else if arguments.csv {
        for row in rows(&answer, &arguments.by) {
            writeln!(output, "{}", row.iter().map(|cell| csv(cell)).collect::<Vec<_>>().join(","))?;
        }
    } else {
        let mut rows = rows(&answer, &arguments.by);
        rows[0].iter_mut().for_each(|cell| *cell = cell.to_uppercase());
        write!(output, "{}", aligned(&rows))?;
        writeln!(output, "whole since {}", plain(&answer["since"]))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the rows, below their names.
fn rows(answer: &Value, by: &str) -> Vec<Vec<String>> {
    let columns = [by, "from"].into_iter().chain(COUNTS);
    let mut rows = vec![columns.clone().map(str::to_owned).collect::<Vec<_>>()];
    let counted = answer["usage"].as_array().into_iter().flatten();
    rows.extend(counted.map(|row| columns.clone().map(|column| plain(&row[column])).collect()));
    rows
}

/// Quotes a cell where CSV needs it (RFC 4180). Names hold neither quotes nor commas; another server might answer anything.
fn csv(cell: &str) -> String {
    if cell.contains([',', '"']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let row = json!({"client": "a,\"b", "from": "2026-11-25T18:00:00Z", "granted": 3, "refused": 1, "waited": 2, "cancelled": 0});
        let rows = rows(&json!({"since": null, "usage": [row]}), "client");
        assert_eq!(rows[0], ["client", "from", "granted", "refused", "waited", "cancelled"]);
        assert_eq!(rows[1], ["a,\"b", "2026-11-25T18:00:00Z", "3", "1", "2", "0"]);
        assert_eq!(csv(&rows[1][0]), "\"a,\"\"b\"");
    }
}
