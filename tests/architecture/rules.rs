//! Forbidden references, and words that belong in one place alone.

use regex::Regex;

use crate::Finding;
use crate::references::{Mentions, Place};
use crate::tree::{ModuleId, Tree};

/// A rule about references or words.
pub(crate) struct Rule {
    /// The rule in words.
    pub(crate) says: &'static str,
    /// The modules that the rule is about, with all below them; the whole crate when empty.
    pub(crate) within: &'static [&'static str],
    /// The modules that the rule leaves out, with all below them.
    pub(crate) except: &'static [&'static str],
    pub(crate) forbids: Forbidden,
    /// A piece of source that breaks the rule, for the test of the rule.
    pub(crate) catches: &'static str,
}

/// A pattern of forbidden paths or literals.
pub(crate) enum Forbidden {
    /// Any path, as resolved: `crate::redis::RedisStore`, `http::StatusCode::OK`.
    Path(&'static str),
    /// A path in the type or the value of a `static`.
    InStatic(&'static str),
    /// A path that is called with the result dropped.
    Dropped(&'static str),
    /// A string literal.
    Text(&'static str),
}

/// The cores, which events alone move, and the values that they are made of.
const CORES: &[&str] = &[
    "limiter::queue::cost_queue",
    "limiter::queue::pause",
    "limiter::queue::prefetch",
    "limiter::queue::refusal_cache",
    "limiter::queue::request",
    "limiter::queue::slot",
    "limiter::queue::worker::common",
    "limiter::queue::worker::core",
    "limiter::queue::worker::limits",
    "limiter::queue::worker::line",
    "limiter::recovery::copies",
    "limiter::recovery::grants",
    "limiter::recovery::ledger",
    "limiter::recovery::link",
    "limiter::recovery::members",
    "limiter::recovery::offline_grants",
    "limiter::store::clock",
];

pub(crate) const RULES: &[Rule] = &[
    Rule {
        says: "the limiter knows nothing of HTTP, Redis, YAML or the configuration",
        within: &["limiter"],
        except: &[],
        forbids: Forbidden::Path(
            r"^(http|http_body|http_body_util|httparse|hyper|hyper_util|redis|deadpool|serde|serde_json|saphyr_parser|schemars|prometheus)(::|$)|^crate::(config|redis|proxy|admin|cli|app)(::|$)",
        ),
        catches: "use serde as s; #[derive(s::Serialize)] struct View;",
    },
    Rule {
        says: "a core has no task, no lock, no channel and no telemetry",
        within: CORES,
        except: &[],
        forbids: Forbidden::Path(
            r"^(tokio|tokio_util|futures_util|tracing|prometheus)(::|$)|^std::(sync|time|thread)(::|$)|^crate::telemetry(::|$)",
        ),
        catches: "use std::sync::Arc;",
    },
    Rule {
        says: "redis knows nothing of the proxy and the admin API",
        within: &["redis"],
        except: &[],
        forbids: Forbidden::Path(
            r"^(http|http_body|http_body_util|httparse|hyper|hyper_util)(::|$)|^crate::(proxy|admin|cli|app)(::|$)",
        ),
        catches: "fn route(of: super::proxy::Proxy) {}",
    },
    Rule {
        says: "no Redis type outside redis/",
        within: &[],
        except: &["redis"],
        forbids: Forbidden::Path(r"^(redis|deadpool)(::|$)"),
        catches: "fn call(client: &::redis::Client) {}",
    },
    Rule {
        says: "the configuration knows nothing of those that use it",
        within: &["config"],
        except: &[],
        forbids: Forbidden::Path(r"^crate::(proxy|redis|admin|cli|app)(::|$)"),
        catches: "use crate::{clock, proxy::Router};",
    },
    Rule {
        says: "the proxy does not know its stores or the admin API",
        within: &["proxy"],
        except: &[],
        forbids: Forbidden::Path(r"^crate::(redis|admin|cli|app)(::|$)"),
        catches: "use super::redis::RedisStore;",
    },
    Rule {
        // The demo's stub provider is a server of its own.
        says: "a status code is written in proxy/messages/response.rs or admin/",
        within: &[],
        except: &["proxy::messages::response", "admin", "cli::demo"],
        forbids: Forbidden::Path(r"\bStatusCode::([A-Z_]{2,}|from_u16)$"),
        catches: "use http::StatusCode as Code; fn code() -> Code { Code::NOT_FOUND }",
    },
    Rule {
        says: "a key of Redis is written in redis/keys.rs",
        within: &[],
        except: &["redis::keys"],
        forbids: Forbidden::Text(r"\}:v\d|:v\d:|\{\{\{"),
        catches: r#"fn key() -> String { format!("{prefix}:{{{group}}}:v2:state") }"#,
    },
    Rule {
        says: "a metric's name is written in telemetry/metrics.rs",
        within: &[],
        except: &["telemetry::metrics"],
        forbids: Forbidden::Text(r"^weir_[a-z_]+$"),
        catches: r#"fn count() { counter("weir_requests_total") }"#,
    },
    Rule {
        says: "every channel has a bound",
        within: &[],
        except: &[],
        forbids: Forbidden::Path(
            r"::unbounded(_channel)?$|::Unbounded(Sender|Receiver)$|^std::sync::mpsc::(channel|Sender)$",
        ),
        catches: "use tokio::sync::mpsc; fn open() { let ends = mpsc::unbounded_channel(); }",
    },
    Rule {
        says: "every task has an owner: spawn on a TaskTracker or keep the handle",
        within: &[],
        except: &[],
        forbids: Forbidden::Dropped(r"^(tokio|std)(::\w+)*::spawn(_blocking|_local)?$"),
        catches: "use tokio::task; fn start() { task::spawn(async {}); }",
    },
    Rule {
        says: "no global mutable state",
        within: &[],
        except: &[],
        forbids: Forbidden::InStatic(
            r"^mut$|(^|::)(Mutex|RwLock|Atomic\w+|ArcSwap\w*|RefCell|Cell|OnceLock|OnceCell)(::|$)",
        ),
        catches: "use std::sync::atomic::AtomicU64; static COUNT: AtomicU64 = AtomicU64::new(0);",
    },
    Rule {
        says: "no global mutable state by a macro",
        within: &[],
        except: &[],
        forbids: Forbidden::Path(r"(^|::)(thread_local|lazy_static)$"),
        catches: "thread_local! { static COUNT: u64 = 0; }",
    },
    Rule {
        says: "a raw schema type ends at validation",
        within: &[],
        except: &["config", "cli::schema"],
        forbids: Forbidden::Path(r"^crate::config::(raw|schema)(::|$)"),
        catches: "use crate::config::schema::File;",
    },
    Rule {
        says: "anyhow is for main alone",
        within: &[],
        except: &["main"],
        forbids: Forbidden::Path(r"^anyhow(::|$)"),
        catches: "use anyhow::Context;",
    },
    Rule {
        // The configuration makes the values from what users write.
        says: "only algorithm/ tells the kinds of limits apart",
        within: &[],
        except: &["limiter::arithmetic::algorithm", "config"],
        forbids: Forbidden::Path(r"^crate::limiter(::\w+)*::(Algorithm|Kind|Checkpoint)::[A-Z]\w*[a-z]\w*$"),
        catches: "use crate::limiter::Kind::Bucket; fn is_bucket(kind: &Bucket) {}",
    },
];

impl Rule {
    fn looks_at(&self, tree: &Tree, module: ModuleId) -> bool {
        let name = &tree.modules[module].name;
        let is_in = |room: &&str| {
            name.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        (self.within.is_empty() || self.within.iter().any(is_in)) && !self.except.iter().any(is_in)
    }

    /// Returns each module that breaks the rule, with the places.
    pub(crate) fn findings(&self, tree: &Tree, mentions: &Mentions) -> Vec<Finding> {
        let mut found: Vec<Finding> = Vec::new();
        for (module, line, spelled) in self.caught(tree, mentions) {
            let key = format!("must never: {}: in {}", self.says, tree.modules[module].name);
            let detail = format!("{}:{line}: {spelled}", tree.modules[module].file);
            match found.iter_mut().find(|finding| finding.key == key) {
                Some(finding) if finding.detail.contains(&detail) => {}
                Some(finding) => finding.detail.push(detail),
                None => found.push(Finding::new(key, detail)),
            }
        }
        found
    }

    fn caught(&self, tree: &Tree, mentions: &Mentions) -> Vec<(ModuleId, usize, String)> {
        let paths = |place: Option<Place>| -> Vec<(ModuleId, usize, String)> {
            let references = mentions.references.iter();
            let references =
                references.filter(|reference| place.is_none_or(|place| reference.place == place));
            references.map(|it| (it.from, it.line, crate::spelled(tree, &it.to))).collect()
        };
        let (pattern, candidates) = match self.forbids {
            Forbidden::Path(pattern) => (pattern, paths(None)),
            Forbidden::InStatic(pattern) => (pattern, paths(Some(Place::Static))),
            Forbidden::Dropped(pattern) => (pattern, paths(Some(Place::Dropped))),
            Forbidden::Text(pattern) => {
                (pattern, mentions.texts.iter().map(|it| (it.from, it.line, it.text.clone())).collect())
            }
        };
        let pattern = Regex::new(pattern).expect("the pattern compiles");
        let candidates = candidates.into_iter();
        candidates.filter(|(from, _, text)| self.looks_at(tree, *from) && pattern.is_match(text)).collect()
    }
}
