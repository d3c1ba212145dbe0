//! The `process_` metrics: what the system knows of this process, by the names that all of Prometheus's clients give it
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>), and the number of its threads.
//!
//! They are read at each scrape. A value that cannot be read is left out. Knows no other metric.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, SystemTime};

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};
use rlimit::Resource;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::time::{ClockId, clock_gettime};

/// A metric: its name, its help and its kind.
type Family = (&'static str, &'static str, MetricType);

const CPU_SECONDS: Family =
    ("process_cpu_seconds_total", "CPU time of the process, user and system.", MetricType::COUNTER);
const OPEN_FDS: Family = ("process_open_fds", "Open file descriptors.", MetricType::GAUGE);
const MAX_FDS: Family = ("process_max_fds", "The limit on open file descriptors.", MetricType::GAUGE);
const VIRTUAL_BYTES: Family =
    ("process_virtual_memory_bytes", "Addresses that the process has reserved.", MetricType::GAUGE);
const RESIDENT_BYTES: Family =
    ("process_resident_memory_bytes", "Memory that the process holds.", MetricType::GAUGE);
const STARTED_AT: Family =
    ("process_start_time_seconds", "Unix time at which the process began, in seconds.", MetricType::GAUGE);
const THREADS: Family = ("process_threads", "Threads of the process.", MetricType::GAUGE);

const FAMILIES: [Family; 7] =
    [CPU_SECONDS, OPEN_FDS, MAX_FDS, VIRTUAL_BYTES, RESIDENT_BYTES, STARTED_AT, THREADS];

/// Collects the metrics of this process.
pub(super) struct ProcessCollector {
    descriptions: Vec<Desc>,
    /// Unix time in seconds. Reckoned once: at each scrape it would be another where the clock is set, as if the process
    /// had begun anew.
    started_at: Option<f64>,
}

impl ProcessCollector {
    pub(super) fn new() -> ProcessCollector {
        let descriptions = FAMILIES.iter().filter_map(|(name, help, _)| {
            Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), HashMap::new()).ok()
        });
        let started_at = Stat::read().and_then(|stat| unix_seconds(stat.started_after));
        ProcessCollector { descriptions: descriptions.collect(), started_at }
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let stat = Stat::read();
        let values = [
            (CPU_SECONDS, Some(seconds_of(ClockId::ProcessCPUTime).as_secs_f64())),
            (OPEN_FDS, fs::read_dir("/proc/self/fd").ok().map(|open| as_f64(open.count() as u64))),
            (MAX_FDS, limit_of_files().map(as_f64)),
            (VIRTUAL_BYTES, stat.as_ref().map(|stat| as_f64(stat.virtual_bytes))),
            (RESIDENT_BYTES, stat.as_ref().map(|stat| as_f64(stat.resident_bytes))),
            (STARTED_AT, self.started_at),
            (THREADS, stat.as_ref().map(|stat| as_f64(stat.threads))),
        ];
        values.into_iter().filter_map(|(family, value)| Some(of_one(family, value?))).collect()
    }
}

/// The fields of `/proc/self/stat` that are shown; proc(5) describes them.
#[derive(Debug, PartialEq)]
struct Stat {
    threads: u64,
    /// The time from the start of the system to that of the process.
    started_after: Duration,
    virtual_bytes: u64,
    resident_bytes: u64,
}

impl Stat {
    fn read() -> Option<Stat> {
        Stat::parse(
            &fs::read_to_string("/proc/self/stat").ok()?,
            clock_ticks_per_second(),
            page_size() as u64,
        )
    }

    /// Parses the line. The program's name stands in its parentheses, and may have any in it.
    fn parse(line: &str, ticks_per_second: u64, page_bytes: u64) -> Option<Stat> {
        let (_, behind_name) = line.rsplit_once(')')?;
        let mut fields = behind_name.split_whitespace();
        let mut number = |skipped: usize| fields.nth(skipped)?.parse::<u64>().ok();
        // By proc(5)'s numbers: the first behind the name is field 3, and these are 20, 22, 23 and 24.
        let threads = number(17)?;
        let started_ticks = number(1)?;
        let virtual_bytes = number(0)?;
        let resident_pages = number(0)?;
        let started_after =
            Duration::try_from_secs_f64(as_f64(started_ticks) / as_f64(ticks_per_second.max(1))).ok()?;
        Some(Stat {
            threads,
            started_after,
            virtual_bytes,
            resident_bytes: resident_pages.saturating_mul(page_bytes),
        })
    }
}

/// Returns the limit on open file descriptors, if there is one.
fn limit_of_files() -> Option<u64> {
    Resource::NOFILE.get_soft().ok().filter(|limit| *limit != rlimit::INFINITY)
}

/// Returns the Unix time of an instant that is so long after the start of the system, in seconds.
fn unix_seconds(after_boot: Duration) -> Option<f64> {
    let age = seconds_of(ClockId::Boottime).checked_sub(after_boot)?;
    let unix_time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(unix_time.checked_sub(age)?.as_secs_f64())
}

fn seconds_of(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
}

/// Counts and sizes are far below 2^53.
fn as_f64(value: u64) -> f64 {
    value as f64
}

fn of_one((name, help, kind): Family, value: f64) -> MetricFamily {
    let mut metric = Metric::default();
    if kind == MetricType::COUNTER {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "71 (a) b (c) S 1 71 71 0 -1 4194560 900 0 0 0 250 50 0 0 20 0 5 0 1234 104857600 2048 18446744073709551615 1";

    #[test]
    fn a_line_is_read_behind_a_name_with_parentheses() {
        let stat = Stat::parse(LINE, 100, 4096).unwrap();
        let expected = Stat {
            threads: 5,
            started_after: Duration::from_millis(12_340),
            virtual_bytes: 100 << 20,
            resident_bytes: 8 << 20,
        };
        assert_eq!(stat, expected);
    }

    #[test]
    fn a_broken_line_tells_nothing() {
        let after_all_time = LINE.replace("1234", &u64::MAX.to_string());
        for broken in ["", "71 (weir", "71 (weir) S 1 71", &LINE.replace("2048", "many"), &after_all_time] {
            assert_eq!(Stat::parse(broken, 1, 4096), None, "{broken:?}");
        }
    }

    #[test]
    fn every_metric_is_collected_and_described() {
        let collector = ProcessCollector::new();
        let names: Vec<String> = collector.collect().iter().map(|family| family.name().to_owned()).collect();
        assert_eq!(names, FAMILIES.map(|(name, ..)| name.to_owned()));
        let described: Vec<&str> =
            collector.desc().iter().map(|description| description.fq_name.as_str()).collect();
        assert_eq!(described, names);
    }

    #[test]
    fn the_process_began_after_the_system_and_before_now() {
        let started_at = ProcessCollector::new().started_at.unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let booted_at = unix_seconds(Duration::ZERO).unwrap();
        // The kernel's ticks are 10 ms.
        assert!((booted_at - 0.02..=now + 0.02).contains(&started_at), "{booted_at} {started_at} {now}");
    }
}
