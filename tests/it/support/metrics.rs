//! Reads the Prometheus text format.

use std::collections::{BTreeMap, BTreeSet};

/// A line: a name, its labels, its value.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// The metrics of one scrape.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    /// `# TYPE` lines: name to `counter`, `gauge` or `histogram`.
    pub(crate) types: BTreeMap<String, String>,
    /// Names that have a `# HELP` line.
    pub(crate) helped: BTreeSet<String>,
    pub(crate) samples: Vec<Sample>,
}

impl Metrics {
    /// Parses a scrape; panics on a line that is not in the format.
    pub(crate) fn parse(text: &str) -> Metrics {
        let mut metrics = Metrics { types: BTreeMap::new(), helped: BTreeSet::new(), samples: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("not a type: {line}"));
                metrics.types.insert(name.into(), kind.into());
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                metrics.helped.insert(rest.split(' ').next().unwrap_or_default().into());
            } else if !line.starts_with('#') {
                let sample = parse_sample(line).unwrap_or_else(|| panic!("not a sample: {line}"));
                metrics.samples.push(sample);
            }
        }
        metrics
    }

    /// Returns the sum of all samples of that name with at least these labels; 0 if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |sample: &&Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|own| own == value))
        };
        self.samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter(carries)
            .map(|sample| sample.value)
            .sum()
    }

    /// Returns the samples of a metric, a histogram's included.
    pub(crate) fn samples_of(&self, name: &str) -> Vec<&Sample> {
        let suffixes = ["", "_bucket", "_sum", "_count"];
        let is_own = |sample: &&Sample| {
            sample.name.strip_prefix(name).is_some_and(|suffix| suffixes.contains(&suffix))
        };
        self.samples.iter().filter(is_own).collect()
    }
}

fn parse_sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, labels)) = series.split_once('{') else {
        return Some(Sample { name: series.into(), labels: BTreeMap::new(), value });
    };
    let labels = parse_labels(labels.strip_suffix('}')?)?;
    Some(Sample { name: name.into(), labels, value })
}

/// Parses `a="x",b="y"`; a backslash makes the character after it literal.
fn parse_labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim_end_matches(',');
    while !rest.is_empty() {
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (end, '"') => break end,
                (_, '\\') => value.push(characters.next()?.1),
                (_, character) => value.push(character),
            }
        };
        labels.insert(name.trim_start_matches(',').to_owned(), value);
        rest = &quoted[end + 1..];
    }
    Some(labels)
}
