//! The arguments of every command, and its help.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use super::check;
use super::explain::ExplainArguments;
use super::remote::{LimiterArguments, Remote};
use super::usage::UsageArguments;
use crate::admin;

/// The command line of the binary.
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "An HTTP reverse proxy that keeps a whole fleet inside the rate limits of\nthird-party APIs",
    after_help = HELP,
    arg_required_else_help = true
)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy
    #[command(after_help = SERVE_HELP)]
    Serve(ConfigFile),

    /// Check a configuration: exit 0 with a summary and warnings, or 1 with every problem
    #[command(after_help = CHECK_HELP)]
    Check {
        /// The configuration
        #[command(flatten)]
        file: ConfigFile,
        /// Further checks, and how the result is printed
        #[command(flatten)]
        options: check::Options,
    },

    /// Explain what would become of a request: route, upstream, headers, limiters
    #[command(after_help = EXPLAIN_HELP)]
    Explain(ExplainArguments),

    /// Make a running weir read its configuration again: prints the changes, or exits 1 with every problem
    #[command(after_help = RELOAD_HELP)]
    Reload {
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// Show the live state of the limiters of a running weir
    #[command(after_help = LIMITERS_HELP)]
    Limiters {
        /// Show this limiter only
        name: Option<String>,
        /// Show this partition: the values of the limiter's key, in order
        #[arg(long, value_name = "VALUE", requires = "name")]
        partition: Vec<String>,
        /// Show the partitions that used most and waited longest in the last minutes, in the whole fleet
        #[arg(long, requires = "name", conflicts_with = "partition")]
        top: bool,
        /// Repeat every second, until Ctrl-C
        #[arg(short, long)]
        watch: bool,
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// Pause a limiter for some time, on all replicas
    #[command(after_help = PAUSE_HELP)]
    Pause {
        /// The limiter
        #[command(flatten)]
        limiter: LimiterArguments,
        /// The length of the pause, such as 30s or 5m; at most 1d
        #[arg(long = "for", value_name = "DURATION", value_parser = pause_length)]
        lasting: String,
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// End the pause of a limiter, on all replicas
    #[command(after_help = RESUME_HELP)]
    Resume {
        /// The limiter
        #[command(flatten)]
        limiter: LimiterArguments,
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// Forget the used permits of a limiter, on all replicas
    #[command(after_help = RESET_HELP)]
    Reset {
        /// The limiter
        #[command(flatten)]
        limiter: LimiterArguments,
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// Show the replicas that share the store with a running weir
    #[command(after_help = REPLICAS_HELP)]
    Replicas {
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// Show who has used what, in the whole fleet: by client, route or limiter
    #[command(after_help = USAGE_HELP)]
    Usage(UsageArguments),

    /// Check whether a running weir can serve: exit 0, or 1 with the reason
    #[command(after_help = HEALTH_HELP)]
    Health {
        /// The running weir
        #[command(flatten)]
        remote: Remote,
    },

    /// Print completions of weir's commands for a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print weir's manual page
    #[command(after_help = MAN_HELP)]
    Man {
        /// Write the pages of weir and of each command to this directory instead
        #[arg(short, long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },

    /// Print the JSON Schema of the configuration, for editors
    #[command(after_help = SCHEMA_HELP)]
    Schema {
        /// Print a page in Markdown instead: docs/configuration.md
        #[arg(long)]
        markdown: bool,
    },

    /// Run a demo: a provider with a quota, weir in front of it, too much traffic
    #[command(after_help = DEMO_HELP)]
    Demo {
        /// Stop after this many seconds
        #[arg(short, long, value_name = "N")]
        seconds: Option<NonZeroU32>,
    },
}

/// The path of the configuration, with or without `--config`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ConfigFile {
    /// The configuration, in YAML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The configuration, without `--config`
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ConfigFile {
    /// Returns the path.
    pub fn into_path(self) -> PathBuf {
        // clap refuses a command line unless exactly one is given.
        self.config.or(self.file).unwrap_or_default()
    }
}

/// Checks the length of a pause. A running weir would refuse it in the words of its API.
fn pause_length(text: &str) -> Result<String, String> {
    admin::pause_length(text)
        .map(|_| text.to_owned())
        .ok_or_else(|| format!("expected {}", admin::PAUSE_LENGTH))
}

const HELP: &str = "\
Try weir, with nothing to set up:
  weir demo

Help for a command:
  weir help serve";

const SERVE_HELP: &str = "\
A change of the file, SIGHUP and `POST /api/reload` reload the configuration. A
file with problems changes nothing. On SIGTERM and SIGINT weir stops accepting
requests, lets those in flight and in queues finish, and exits 0. Traces are sent
to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names.

Examples:
  weir serve --config config/quickstart.yaml
  GITHUB_TOKEN=... weir serve --config /etc/weir/weir.yaml";

const CHECK_HELP: &str = "\
Nothing is started, and only the store is contacted, with --store. `${VAR}` and
`${file:PATH}` are replaced, so the variables and files must exist. Warnings name
what is valid and hardly meant, such as a limiter that no route uses, a route that can
never match, and `*` in a path; with --strict they make it exit 1. `-` is standard input.

Examples:
  weir check --config config/weir.yaml
  weir check --strict --config weir.yaml
  envsubst < weir.yaml.in | weir check -
  weir check --config /etc/weir/weir.yaml --store
  weir check --config weir.yaml --json";

const EXPLAIN_HELP: &str = "\
Nothing is sent upstream and no permit is taken. Says why other routes do not take
the request. Exits 1 if it would be refused. Without --config a running weir is
asked, which tells what its limiters have available, too.

Examples:
  weir explain GET /github/user --config weir.yaml
  weir explain POST http://weir:8080/v1/x -H 'x-tenant: acme' -d '{}' --config weir.yaml
  weir explain GET /github/user --admin http://10.0.0.7:9090";

const RELOAD_HELP: &str = "\
The replica that is asked reads its file; `listen`, `admin.listen` and `store` need a
restart. A file with problems changes nothing.

Examples:
  weir reload
  WEIR_ADMIN_TOKEN=... weir reload --admin http://10.0.0.7:9090";

const LIMITERS_HELP: &str = "\
Examples:
  weir limiters
  weir limiters github --watch
  weir limiters dingtalk --top
  WEIR_ADMIN_TOKEN=... weir limiters --admin http://10.0.0.7:9090 --json";

const PAUSE_HELP: &str = "\
Queued requests keep their order through the pause. A request that would wait
longer than its queue's timeout gets 429.

Examples:
  weir pause github --for 5m
  weir pause dingtalk --partition corp-7 --for 30s
  weir resume github";

const RESUME_HELP: &str = "\
Queued requests get earlier slots. An upstream that still rejects requests pauses
the limiter again.

Examples:
  weir resume github
  weir resume dingtalk --partition corp-7";

const RESET_HELP: &str = "\
The whole limit is available again at once. Use it when the provider has reset its
quota, too; otherwise weir exceeds the provider's limit.

Examples:
  weir reset github
  weir reset dingtalk --partition corp-7";

const REPLICAS_HELP: &str = "\
SEEN is when a replica last spoke to the store; up to 10 s ago is usual. A replica that
has been silent for 15 s is not listed. All replicas should have the
same configuration; while they do not, the strictest limits hold for all.

Examples:
  weir replicas
  weir replicas --admin http://10.0.0.7:9090 --json";

const USAGE_HELP: &str = "\
Counted in cost, by hour or day of UTC, and complete after a minute. `waited` is a part
of `granted`. Clients without a name are `other`; `none` where no clients are configured.

Examples:
  weir usage
  weir usage --by limiter --per 1d --from 2026-11-01T00:00:00Z
  weir usage --per 1d --csv > usage.csv";

const HEALTH_HELP: &str = "\
For health checks of containers and in scripts. Needs no token.

Examples:
  weir health
  weir health --admin http://10.0.0.7:9090 --json";

const COMPLETIONS_HELP: &str = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish";

const MAN_HELP: &str = "\
Examples:
  weir man | man -l -
  weir man --directory ~/.local/share/man/man1";

const SCHEMA_HELP: &str = "\
Examples:
  weir schema > weir.schema.json

and as the first line of the configuration:
  # yaml-language-server: $schema=weir.schema.json

As a page to read:
  weir schema --markdown | less";

const DEMO_HELP: &str = "\
Everything runs in this process, without Redis: a provider that allows 10
requests a second and answers 429 beyond that, weir with config/quickstart.yaml,
and 25 requests a second. Ctrl-C ends the demo.

Examples:
  weir demo
  weir demo --seconds 10";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_definition_of_the_command_line() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_configuration_is_given_with_or_without_its_option() {
        for words in
            [["check", "a.yaml"].as_slice(), &["check", "--config", "a.yaml"], &["check", "-c", "a.yaml"]]
        {
            let cli = Cli::try_parse_from([&["weir"], words].concat()).unwrap();
            let Command::Check { file, .. } = cli.command else { panic!("{words:?}") };
            assert_eq!(file.into_path(), PathBuf::from("a.yaml"));
        }
        assert!(matches!(Cli::try_parse_from(["weir", "serve", "a"]).unwrap().command, Command::Serve(_)));
        assert!(Cli::try_parse_from(["weir", "check"]).is_err());
        assert!(Cli::try_parse_from(["weir", "check", "a", "--config", "b"]).is_err());
    }

    #[test]
    fn a_pause_lasts_from_a_millisecond_to_a_day() {
        let pause = |lasting: &str| Cli::try_parse_from(["weir", "pause", "api", "--for", lasting]);
        for lasting in ["1ms", "30s", "24h", "1d"] {
            assert!(pause(lasting).is_ok(), "{lasting}");
        }
        for lasting in ["0s", "0ms", "2d", "25h", "30", "soon"] {
            let fault = pause(lasting).unwrap_err().to_string();
            assert!(
                fault.contains("'--for <DURATION>': expected a duration from 1ms to 1d, such as 30s"),
                "{fault}"
            );
        }
    }

    #[test]
    fn a_demo_of_zero_seconds_is_refused() {
        assert!(Cli::try_parse_from(["weir", "demo", "--seconds", "0"]).is_err());
        let cli = Cli::try_parse_from(["weir", "demo", "--seconds", "3"]).unwrap();
        assert!(matches!(cli.command, Command::Demo { seconds: Some(seconds) } if seconds.get() == 3));
    }
}
