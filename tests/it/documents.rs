//! The documents and the files for operators are true: metrics, alerts, links, configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;
use tempfile::TempDir;

use crate::support::weir::{check_strictly, run};
use crate::support::{Reply, Upstream, Weir, client, closed_port, eventually, lane, one_limiter};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns every document with its path.
fn documents() -> Vec<(PathBuf, String)> {
    let docs = fs::read_dir(Path::new(ROOT).join("docs")).expect("docs/");
    let others = [
        "README.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "deploy/README.md",
        "deploy/helm/weir/README.md",
    ]
    .map(|path| Path::new(ROOT).join(path));
    let paths = docs.map(|entry| entry.expect("an entry").path()).chain(others);
    let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "md"));
    paths.map(|path| (path.clone(), fs::read_to_string(&path).expect("a document"))).collect()
}

/// Returns the matches of the pattern's only group.
fn found(text: &str, pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).expect("a pattern");
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Returns the table of docs/operations.md: name, type, labels.
fn table() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let row = Regex::new(r"(?m)^\| `((?:weir|process)_\w+)` \| (\w+) \|([^|]*)\|").expect("a pattern");
    let operations = read("docs/operations.md");
    let rows = row.captures_iter(&operations);
    rows.map(|row| (row[1].to_owned(), (row[2].to_owned(), found(&row[3], "`([a-z_]+)`")))).collect()
}

#[tokio::test]
async fn the_documented_metrics_are_the_exported_ones() {
    let _lane = lane::shared().await;
    let upstream = Upstream::start();
    // With a share, so that each series has all its labels.
    let limiter =
        "{limits: [3/1m, 1000/1h], queue: {timeout: 100ms, max_waiting: 5}, share: {by: header:x-caller}}";
    let reply = Reply::status(200)
        .header("x-cost", "1")
        .header("x-ratelimit-limit", "3")
        .header("x-ratelimit-remaining", "2");
    upstream.reply("/", reply);
    let config = one_limiter("memory", limiter, &upstream) + "    cost: {settle: {header: x-cost}}\n";
    let weir = Weir::start(&config).await;
    for status in [200, 200, 200, 429] {
        assert_eq!(weir.get("/").await.status, status);
    }
    // They are reckoned every few seconds.
    eventually("a forecast, and a comparison", async || {
        let metrics = weir.metrics().await;
        ["weir_limiter_exhausted_in_seconds", "weir_limiter_upstream_apart_permits"]
            .iter()
            .all(|family| !metrics.samples_of(family).is_empty())
    })
    .await;
    let text = weir.ask("/metrics").await.text();
    let kind = Regex::new(r"(?m)^# TYPE (\w+) (\w+)$").unwrap();
    let exported: BTreeMap<String, String> =
        kind.captures_iter(&text).map(|kind| (kind[1].to_owned(), kind[2].to_owned())).collect();
    let told: BTreeMap<String, String> = table().into_iter().map(|(name, (kind, _))| (name, kind)).collect();
    assert_eq!(told, exported);
    // Each series has exactly the documented labels.
    let series = Regex::new(r"(?m)^(\w+)(?:\{([^}]*)\})? ").unwrap();
    let mut seen = 0;
    for series in series.captures_iter(&text) {
        let name = series[1].to_owned();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .filter_map(|end| name.strip_suffix(end))
            .find(|family| exported.contains_key(*family))
            .unwrap_or(&name);
        let mut labels = found(series.get(2).map_or("", |labels| labels.as_str()), r#"(\w+)=""#);
        labels.remove("le");
        assert_eq!(labels, table()[family].1, "{name}");
        seen += 1;
    }
    assert!(seen > 100, "{seen} series");
}

/// Returns the metrics that expressions name, without the endings of a histogram's series.
fn metrics_of(text: &str) -> BTreeSet<String> {
    let names = found(text, r"\b((?:weir|process)_[a-z_]+[a-z])\b");
    let known = table();
    let bare = |name: String| {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        family.filter(|family| known.contains_key(*family)).map_or(name.clone(), str::to_owned)
    };
    names.into_iter().map(bare).collect()
}

#[test]
fn alerts_and_panels_name_metrics_that_exist_and_each_alert_has_its_page() {
    let (alerts, operations) = (read("deploy/prometheus/alerts.yml"), read("docs/operations.md"));
    let known: BTreeSet<String> = table().into_keys().collect();
    for (path, text) in [
        ("alerts.yml", &alerts),
        ("weir.json", &read("deploy/grafana/dashboards/weir.json")),
        ("operations.md", &operations),
    ] {
        let named = metrics_of(text);
        assert!(named.len() > 10, "{path}: {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}");
    }
    let named = found(&alerts, r"(?m)^ +- alert: (\w+)$");
    assert_eq!(named, found(&operations, r"(?m)^### (Weir\w+)$"));
    let pages = found(&alerts, r"runbook: docs/operations\.md#(\w+)");
    assert_eq!(pages, named.iter().map(|name| name.to_lowercase()).collect());
    let tested = found(&read("deploy/prometheus/alerts.test.yml"), r"alertname: (\w+)");
    assert_eq!(tested, named, "each is tested");
}

#[tokio::test]
async fn every_configuration_in_a_document_passes_the_check() {
    let _lane = lane::shared().await;
    let directory = TempDir::new().expect("a directory");
    let mut checked = 0;
    for (path, text) in documents() {
        for whole in found(&text, r"(?ms)^```yaml\n(.*?)^```$") {
            let file = directory.path().join("weir.yaml");
            fs::write(&file, &whole).expect("a file");
            let checked_now = check_strictly(&file).await;
            assert_eq!(checked_now.code, Some(0), "{}:\n{whole}\n{}", path.display(), checked_now.output());
            checked += 1;
        }
    }
    assert!(checked >= 7, "{checked} configurations");
}

#[test]
fn configurations_shown_as_shipped_are_shipped() {
    let directory = fs::read_dir(Path::new(ROOT).join("config")).expect("config/");
    let shipped: Vec<String> =
        directory.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("a file")).collect();
    let documents = ["README.md", "docs/calls.md", "docs/redis.md"].map(read);
    let shown: Vec<String> =
        documents.iter().flat_map(|text| found(text, r"(?ms)^```yaml\n(.*?)^```$")).collect();
    assert!(shown.len() >= 3, "{shown:?}");
    for whole in shown {
        assert!(shipped.iter().any(|shipped| shipped.ends_with(&whole)), "not in config/:\n{whole}");
    }
}

/// Runs `weir check` on a configuration whose secrets are files beside it.
async fn check_with_secrets(text: &str) {
    let directory = TempDir::new().expect("a directory");
    fs::create_dir(directory.path().join("secrets")).expect("a directory");
    for secret in found(text, r"\$\{file:([^}]+)\}") {
        let value = if secret.ends_with("url") { "redis://127.0.0.1:6379" } else { "a-secret" };
        fs::write(directory.path().join(secret), value).expect("a file");
    }
    let file = directory.path().join("weir.yaml");
    fs::write(&file, text).expect("a file");
    check_strictly(&file).await.assert_code(0);
}

#[tokio::test]
async fn the_configurations_for_kubernetes_pass_the_check() {
    let _lane = lane::shared().await;
    check_with_secrets(&read("deploy/kubernetes/weir.yaml")).await;
    let chart = Path::new(ROOT).join("deploy/helm/weir");
    let sets = fs::read_dir(chart.join("ci")).expect("ci/").map(|entry| entry.expect("an entry").path());
    let mut checked = 0;
    for values in sets.chain([chart.join("values.yaml")]) {
        let values = fs::read_to_string(values).expect("values");
        for block in found(&values, r"(?m)^config: \|\n((?:  .*\n)+)") {
            let lines = block.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
            check_with_secrets(&lines.collect::<Vec<_>>().join("\n")).await;
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} configurations");
}

#[tokio::test]
async fn every_link_leads_somewhere_and_every_file_and_command_exists() {
    let _lane = lane::shared().await;
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let anchors = |path: &Path| -> BTreeSet<String> {
        let text = fs::read_to_string(path).unwrap_or_default();
        found(&text, r"(?m)^#+ (.+)$").iter().map(|heading| anchor(heading)).collect()
    };
    let mut links = 0;
    for (path, text) in documents() {
        let fences = text.lines().filter(|line| line.starts_with("```")).count();
        assert_eq!(fences % 2, 0, "{}: a fence is not closed", path.display());
        for link in found(&text, r"\]\(([^)\s]+)\)") {
            if link.contains("://") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().expect("a directory").join(file) };
            assert!(target.exists(), "{}: {link} does not exist", path.display());
            let is_there = fragment.is_empty() || anchors(&target).contains(fragment);
            assert!(is_there, "{}: there is no heading for {link}", path.display());
            links += 1;
        }
        for named in found(&text, r"(?m)(?:^|[\s`(])((?:config|scripts|docs|deploy|src)/[\w.-]*\w)") {
            // docs/architecture.md names the files of `src` and `lua` from there.
            let exists =
                ["", "src", "lua"].iter().any(|folder| Path::new(ROOT).join(folder).join(&named).exists());
            assert!(exists, "{}: {named} does not exist", path.display());
        }
        // Commands stand at the beginning of a line, possibly behind variables, and in code spans.
        let shells: String = found(&text, r"(?ms)^```sh[^\n]*\n(.*?)^```$").into_iter().collect();
        let typed = found(&shells, r"(?m)^(?:[A-Z_]+=\S+ )*weir ([a-z]+)\b");
        for command in typed.union(&found(&text, r"`weir ([a-z]+)\b")) {
            let help = run(&["help", command]).await;
            assert_eq!(help.code, Some(0), "{}: weir {command}: {}", path.display(), help.output());
        }
    }
    assert!(links > 50, "{links} links");
}

#[tokio::test]
async fn the_stand_in_for_an_api_answers_every_method() {
    let _lane = lane::shared().await;
    let port = closed_port();
    let mut provider = tokio::process::Command::new(Path::new(ROOT).join("scripts/provider"));
    provider.arg(port.to_string()).stderr(std::process::Stdio::null()).kill_on_drop(true);
    let _provider = provider.spawn().expect("it starts");
    let url = format!("http://127.0.0.1:{port}/");
    eventually("it answers", async || client::get(&url).await.is_ok()).await;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = client::Request::post("/", b"a body").method(method);
        assert_eq!(client::send(&url, request).await.expect("an answer").status, 200, "{method}");
    }
}
