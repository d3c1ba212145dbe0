//! The arguments of every command, and its help.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use super::remote::{Remote, Which};

/// Everything that can be asked of the binary.
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "An HTTP reverse proxy that keeps a whole fleet inside the rate limits of\nthird-party APIs",
    after_help = HELP,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy
    #[command(after_help = SERVE_HELP)]
    Serve(ConfigFile),

    /// Check a configuration: exit 0 and a summary, or 1 and every problem
    #[command(after_help = CHECK_HELP)]
    Check {
        /// Which
        #[command(flatten)]
        file: ConfigFile,
        /// Also try the store: everything that weir does there
        #[arg(long)]
        store: bool,
        /// Print the outcome as JSON
        #[arg(long)]
        json: bool,
    },

    /// Show the live state of the limiters of a running weir
    #[command(after_help = LIMITERS_HELP)]
    Limiters {
        /// One of them, in all its detail
        name: Option<String>,
        /// One of its partitions, by the values of its key, in order
        #[arg(long, value_name = "VALUE", requires = "name")]
        partition: Vec<String>,
        /// Again every second, until Ctrl-C
        #[arg(short, long)]
        watch: bool,
        /// Where
        #[command(flatten)]
        remote: Remote,
    },

    /// Give no permit of a limiter for some time, on all replicas
    #[command(after_help = PAUSE_HELP)]
    Pause {
        /// Which
        #[command(flatten)]
        which: Which,
        /// For how long, such as 30s or 5m; at most 1d
        #[arg(long = "for", value_name = "DURATION")]
        lasting: String,
        /// Where
        #[command(flatten)]
        remote: Remote,
    },

    /// Let a paused limiter go on, on all replicas
    #[command(after_help = RESUME_HELP)]
    Resume {
        /// Which
        #[command(flatten)]
        which: Which,
        /// Where
        #[command(flatten)]
        remote: Remote,
    },

    /// Forget what was used of a limiter, on all replicas
    #[command(after_help = RESET_HELP)]
    Reset {
        /// Which
        #[command(flatten)]
        which: Which,
        /// Where
        #[command(flatten)]
        remote: Remote,
    },

    /// Show the replicas that share the store with a running weir
    #[command(after_help = REPLICAS_HELP)]
    Replicas {
        /// Where
        #[command(flatten)]
        remote: Remote,
    },

    /// Ask a running weir whether it can serve: exit 0, or 1 and why not
    #[command(after_help = HEALTH_HELP)]
    Health {
        /// Where
        #[command(flatten)]
        remote: Remote,
    },

    /// Print what a shell needs to complete weir's commands
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// Which
        shell: Shell,
    },

    /// Print every key of the configuration, as JSON Schema for editors
    #[command(after_help = SCHEMA_HELP)]
    Schema {
        /// As a page for people, in Markdown: docs/configuration.md
        #[arg(long)]
        markdown: bool,
    },

    /// See it work: a provider with a quota, weir before it, too much traffic
    #[command(after_help = DEMO_HELP)]
    Demo {
        /// End after this many seconds
        #[arg(short, long, value_name = "N")]
        seconds: Option<NonZeroU32>,
    },
}

/// The configuration, named in one of two ways.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ConfigFile {
    /// The configuration, in YAML
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The same, without the option's name
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl ConfigFile {
    /// Its path.
    pub fn into_path(self) -> PathBuf {
        // The command line is refused unless exactly one is given.
        self.config.or(self.file).unwrap_or_default()
    }
}

const HELP: &str = "\
Try it, with nothing to set up:
  weir demo

Each command explains itself:
  weir help serve";

const SERVE_HELP: &str = "\
A change of the file, SIGHUP and `POST /api/reload` take up a new configuration;
one that has problems changes nothing. SIGTERM and SIGINT stop taking requests,
let those under way and waiting finish, and exit 0. Traces go to the collector that
OTEL_EXPORTER_OTLP_ENDPOINT names.

Examples:
  weir serve --config config/quickstart.yaml
  GITHUB_TOKEN=... weir serve --config /etc/weir/weir.yaml";

const CHECK_HELP: &str = "\
Nothing is started, and nothing is contacted but the store, with --store. `${VAR}`
and `${file:PATH}` are replaced, so they must be there.

Examples:
  weir check --config config/weir.yaml
  weir check --config /etc/weir/weir.yaml --store
  weir check --config weir.yaml --json";

const LIMITERS_HELP: &str = "\
Examples:
  weir limiters
  weir limiters github --watch
  WEIR_ADMIN_TOKEN=... weir limiters --admin http://10.0.0.7:9090 --json";

const PAUSE_HELP: &str = "\
Who waits waits longer, in order; who would have to wait for too long gets 429.

Examples:
  weir pause github --for 5m
  weir pause dingtalk --partition corp-7 --for 30s
  weir resume github";

const RESUME_HELP: &str = "\
What waits moves up. An upstream that still refuses pauses it again.

Examples:
  weir resume github
  weir resume dingtalk --partition corp-7";

const RESET_HELP: &str = "\
The next window holds the whole limit again, whatever was used of this one: for when
the provider has forgotten it, too. Otherwise it goes over the provider's limit.

Examples:
  weir reset github
  weir reset dingtalk --partition corp-7";

const REPLICAS_HELP: &str = "\
One that has been silent for 15 s is left out. All should have the same
configuration; while they do not, each keeps to its own limits.

Examples:
  weir replicas
  weir replicas --admin http://10.0.0.7:9090 --json";

const HEALTH_HELP: &str = "\
For health checks of containers and scripts. Needs no token.

Examples:
  weir health
  weir health --admin http://10.0.0.7:9090 --json";

const COMPLETIONS_HELP: &str = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish";

const SCHEMA_HELP: &str = "\
Examples:
  weir schema > weir.schema.json

and as the first line of the configuration:
  # yaml-language-server: $schema=weir.schema.json

To read:
  weir schema --markdown | less";

const DEMO_HELP: &str = "\
Everything runs in this process, without Redis: a provider that allows 10
requests a second and answers 429 beyond, weir with config/quickstart.yaml, and
25 requests a second. Ctrl-C ends it.

Examples:
  weir demo
  weir demo --seconds 10";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_configuration_is_named_with_or_without_its_option() {
        for words in
            [["check", "a.yaml"].as_slice(), &["check", "--config", "a.yaml"], &["check", "-c", "a.yaml"]]
        {
            let cli = Cli::try_parse_from([&["weir"], words].concat()).unwrap();
            let Command::Check { file, store: false, json: false } = cli.command else { panic!("{words:?}") };
            assert_eq!(file.into_path(), PathBuf::from("a.yaml"));
        }
        assert!(matches!(Cli::try_parse_from(["weir", "serve", "a"]).unwrap().command, Command::Serve(_)));
        assert!(Cli::try_parse_from(["weir", "check"]).is_err());
        assert!(Cli::try_parse_from(["weir", "check", "a", "--config", "b"]).is_err());
    }

    #[test]
    fn a_demo_of_no_length_is_refused() {
        assert!(Cli::try_parse_from(["weir", "demo", "--seconds", "0"]).is_err());
        let cli = Cli::try_parse_from(["weir", "demo", "--seconds", "3"]).unwrap();
        assert!(matches!(cli.command, Command::Demo { seconds: Some(seconds) } if seconds.get() == 3));
    }
}
