//! What must never exist in the sources: imports that turn the rooms upside down, words outside their one place,
//! anything unbounded or owned by nobody.
//!
//! Reads the text of `src/`, without comments and without test modules. It is no parser: it looks for spellings, and
//! each rule is shown to catch one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

/// One thing that must not be.
struct Rule {
    /// What, and where to put it instead.
    says: &'static str,
    /// The files it looks at: paths from `src/` that begin with one of these; all when empty.
    within: &'static [&'static str],
    /// The files it passes over: the one place where it may be.
    except: &'static [&'static str],
    /// Spelled so, in one line of code.
    pattern: &'static str,
    /// A line that it catches.
    catches: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        says: "the limiter knows nothing of HTTP, Redis, YAML or the configuration",
        within: &["limiter/"],
        except: &[],
        pattern: r"\b(http|http_body|hyper|hyper_util|deadpool|serde|serde_json|saphyr_parser|prometheus)::|#\[derive\([^)]*\b(Serialize|Deserialize)\b|\bcrate::(config|redis|proxy|admin|cli|app)\b|\buse redis\b",
        catches: "use http::HeaderName;",
    },
    Rule {
        says: "redis knows nothing of the proxy and the admin API",
        within: &["redis/"],
        except: &[],
        pattern: r"\bcrate::(proxy|admin|cli|app)\b|\b(http|hyper|hyper_util)::",
        catches: "use crate::proxy::Proxy;",
    },
    Rule {
        says: "no Redis type outside redis/",
        within: &[],
        except: &["redis/"],
        pattern: r"\bdeadpool\b|(^|[^:\w])(::)?redis::(aio|cmd|pipe|Cmd|Client|Connection\w*|ErrorKind|FromRedisValue|ToRedisArgs|RedisError|RedisResult|Script|Value|AsyncCommands|AsyncTypedCommands|Commands)\b|\buse ::redis\b",
        catches: "fn call(client: &redis::Client) {}",
    },
    Rule {
        says: "the configuration knows nothing of those that use it",
        within: &["config/"],
        except: &[],
        pattern: r"\bcrate::(proxy|redis|admin|cli|app)\b",
        catches: "use crate::proxy::Router;",
    },
    Rule {
        says: "the proxy does not know its stores or the admin API",
        within: &["proxy/"],
        except: &[],
        pattern: r"\bcrate::(redis|admin|cli|app)\b",
        catches: "use crate::redis::RedisStore;",
    },
    Rule {
        // The demo's stub provider is a server of its own.
        says: "a status code is written in proxy/messages/response.rs or admin/",
        within: &[],
        except: &["proxy/messages/response.rs", "admin/", "cli/demo"],
        pattern: r"\bStatusCode::([A-Z_]{2,}|from_u16)\b",
        catches: "return StatusCode::NOT_FOUND;",
    },
    Rule {
        says: "a key of Redis is written in redis/keys.rs",
        within: &[],
        except: &["redis/keys.rs"],
        pattern: r#""[^"]*(\}:v\d|:v\d:|\{\{\{)[^"]*""#,
        catches: r#"let key = format!("{prefix}:{{{group}}}:v1:state");"#,
    },
    Rule {
        says: "a metric's name is written in telemetry/metrics.rs",
        within: &[],
        except: &["telemetry/metrics"],
        pattern: r#""weir_[a-z_]+""#,
        catches: r#"counter("weir_requests_total")"#,
    },
    Rule {
        says: "every channel has a bound",
        within: &[],
        except: &[],
        pattern: r"\bunbounded(_channel)?\s*(::<[^(]*>)?\(|\bUnbounded(Sender|Receiver)\b|\bstd::sync::mpsc::(channel|Sender)\b",
        catches: "let (sender, receiver) = mpsc::unbounded_channel();",
    },
    Rule {
        says: "every task has an owner: spawn on a TaskTracker or keep the handle",
        within: &[],
        except: &[],
        pattern: r"^\s*(let _ = |drop\()?(tokio::(task::)?|task::)?spawn(_blocking|_local)?\(",
        catches: "    tokio::spawn(async {});",
    },
    Rule {
        says: "no global mutable state",
        within: &[],
        except: &[],
        pattern: r"\bstatic mut\b|\bstatic \w+: .*\b(Mutex|RwLock|Atomic\w+|ArcSwap\w*|RefCell|Cell|OnceLock|OnceCell)\b|\bthread_local!|\blazy_static!",
        catches: "static COUNT: AtomicU64 = AtomicU64::new(0);",
    },
    Rule {
        says: "a raw schema type ends at validation",
        within: &[],
        except: &["config/", "cli/schema.rs"],
        pattern: r"\bconfig::(raw|schema)::",
        catches: "use crate::config::schema::File;",
    },
    Rule {
        says: "anyhow is for main alone",
        within: &[],
        except: &["main.rs"],
        pattern: r"\banyhow\b",
        catches: "use anyhow::Context;",
    },
    Rule {
        says: "the crate forbids unsafe code",
        within: &[],
        except: &[],
        pattern: r"\bunsafe\s*(\{|fn|impl)",
        catches: "let x = unsafe { y };",
    },
];

impl Rule {
    fn looks_at(&self, path: &str) -> bool {
        let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
        (self.within.is_empty() || is_in(self.within)) && !is_in(self.except)
    }

    fn pattern(&self) -> Regex {
        Regex::new(self.pattern).expect("the pattern compiles")
    }
}

#[test]
fn each_rule_catches_its_example() {
    for rule in RULES {
        assert!(rule.pattern().is_match(rule.catches), "{}: {}", rule.says, rule.catches);
    }
}

#[test]
fn own_modules_and_comments_are_not_caught() {
    let fine = "use crate::redis::RedisStore; // not redis::Client\n/// redis::Client\nlet x = 1;\n#[cfg(test)]\nmod tests {\n    tokio::spawn(x);\n}\n";
    let code = code_of(fine);
    for rule in RULES.iter().filter(|rule| rule.within.is_empty()) {
        assert!(!code.iter().any(|(_, line)| rule.pattern().is_match(line)), "{}", rule.says);
    }
}

#[test]
fn nothing_that_must_never_exist_exists() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&sources, &sources, &mut files);
    assert!(files.len() > 5, "the sources were found");

    let mut found = Vec::new();
    for rule in RULES {
        let pattern = rule.pattern();
        for (path, code) in files.iter().filter(|(path, _)| rule.looks_at(path)) {
            let lines = code.iter().filter(|(_, line)| pattern.is_match(line));
            found
                .extend(lines.map(|(number, line)| {
                    format!("src/{path}:{number}: {}\n    {}", rule.says, line.trim())
                }));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_crate_forbids_unsafe_code() {
    let library = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")).unwrap();
    assert!(library.contains("#![forbid(unsafe_code)]"));
}

/// Every Rust file below a directory, test files aside: its path from `src/`, and its code.
fn collect(root: &Path, directory: &Path, files: &mut Vec<(String, Vec<(usize, String)>)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            if !name.ends_with("tests.rs") && !name.contains("tests/") {
                files.push((name, code_of(&fs::read_to_string(&path).unwrap())));
            }
        }
    }
}

/// The lines of code with their numbers: without comments, and up to the test module, which comes last.
fn code_of(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]");
    let code = lines.filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.map(|(index, line)| (index + 1, line.split(" // ").next().unwrap_or_default().to_owned())).collect()
}

/// The numbers that the pattern's group finds in a text.
fn numbers(text: &str, pattern: &str) -> BTreeSet<u32> {
    let pattern = Regex::new(pattern).unwrap();
    pattern.captures_iter(text).map(|found| found[1].parse().unwrap()).collect()
}

#[test]
fn a_script_says_first_what_it_takes_and_takes_just_that() {
    let mut scripts = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/scripts")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let body = text.find("\n\n").map(|end| text.split_at(end).1).unwrap();
        let header: String =
            text.lines().take_while(|line| line.starts_with("--")).flat_map(|line| [line, "\n"]).collect();
        assert!(header.starts_with(&format!("-- {name}: ")), "{name} does not say what it does");
        for part in ["KEYS[1", "Returns", "Atomic"] {
            assert!(header.contains(&format!("\n-- {part}")), "{name} does not name its {part}");
        }
        let said = numbers(&header, r"(?m)^-- ARGV\[(\d+)\]");
        let rest = numbers(&header, r"(?m)^-- ARGV\[(\d+)\.\.\]");
        let taken = numbers(body, r"ARGV\[(\d+)\]");
        assert_eq!(said, taken, "what {name} says of ARGV, and what it takes");
        let count = u32::try_from(said.len()).unwrap();
        assert_eq!(said, (1..=count).collect(), "{name} counts its arguments");
        assert_eq!(
            rest.first().is_some(),
            body.contains("#ARGV") || body.contains("ARGV[argument"),
            "the rest of {name}"
        );
        assert!(rest.iter().all(|first| *first == count + 1), "{name} says where the rest begins");
        scripts += 1;
    }
    assert!(scripts >= 8, "{scripts} scripts");
}
