//! Configures and starts the contenders, and the origin behind them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::contender::{Contender, Name};
use crate::load::Result;
use crate::load::process::{Process, free_address};
use crate::machine::{Machine, Side};
use crate::packages::{HAPROXY, LUA_MODULE, NDK_MODULE, NGINX_LUA, REDIS, obtain, program};
use crate::{BARE, tell};

/// The size of the origin's body, and so of every forwarded one.
const BODY_BYTES: usize = 64;
/// The size that makes a static answer as long as weir's refusal, whose head is longer.
const REFUSAL_BODY_BYTES: usize = 423;
/// A limit that no load uses up.
const PLENTY: &str = "1000000/1s";
/// A limit with one permit for the request before the load, and none for the load.
const ONE: &str = "1/1h";
const FEW_ROUTES: usize = 10;
const MANY_ROUTES: usize = 10_000;

/// The contenders that this machine can run. All of them live for all rounds, because an idle contender costs
/// nothing.
pub(crate) struct Started {
    pub(crate) contenders: Vec<Contender>,
    _origin: Process,
    _directory: TempDir,
}

/// Starts the contenders, scenario by scenario: those that are compared with each other stand close together. A short run has only
/// weir, nginx and the bare proxy.
pub(crate) fn start(machine: &Machine, is_short: bool) -> Result<Started> {
    let directory = TempDir::with_prefix("weir-compare")?;
    let starter = Starter { machine, directory: directory.path(), origin: free_address()? };
    let origin = starter.origin()?;
    let redis = obtain(&REDIS);
    let (haproxy, lua) = (!is_short && obtain(&HAPROXY), !is_short && obtain(&NGINX_LUA));
    let known: [(Name, bool, Start<'_>); 13] = [
        (Name::NginxShipped, true, |starter, name| {
            starter.nginx(name, "nginx-shipped", "access_log access.log;")
        }),
        (Name::WeirShipped, redis, Starter::weir_shipped),
        (Name::Nginx, true, |starter, name| starter.nginx(name, "nginx", "")),
        (Name::Bare, true, Starter::bare),
        (Name::WeirRedis, redis, Starter::weir_redis),
        (Name::Haproxy, haproxy, Starter::haproxy),
        (Name::NginxLua, redis && lua, Starter::nginx_lua),
        (Name::WeirMemory, !is_short, Starter::weir_memory),
        (Name::WeirUnlimited, !is_short, Starter::weir_unlimited),
        (Name::NginxStatic, redis && !is_short, Starter::nginx_static),
        (Name::WeirRefusing, redis && !is_short, Starter::weir_refusing),
        (Name::WeirFewRoutes, !is_short, |starter, name| starter.weir_routes(name, FEW_ROUTES)),
        (Name::WeirManyRoutes, !is_short, |starter, name| starter.weir_routes(name, MANY_ROUTES)),
    ];
    let mut contenders = Vec::with_capacity(known.len());
    for (name, is_possible, start) in known {
        if is_possible {
            let contender = start(&starter, name).map_err(|problem| format!("{name}: {problem}"))?;
            contender.check()?;
            contenders.push(contender);
        } else if !is_short {
            tell(&format!("{name}: left out, since something that it needs is missing"));
        }
    }
    Ok(Started { contenders, _origin: origin, _directory: directory })
}

type Start<'a> = fn(&Starter<'a>, Name) -> Result<Contender>;

struct Starter<'a> {
    machine: &'a Machine,
    directory: &'a Path,
    origin: SocketAddr,
}

/// A started server, and the file of its output.
struct Server {
    process: Process,
    log: PathBuf,
}

/// The configuration of a weir, besides the addresses.
struct Weir<'a> {
    store: &'a str,
    /// The limits of a limiter that every route takes, if any.
    limits: Option<&'a str>,
    routes: usize,
    /// The line that configures the log; empty for the default.
    log: &'a str,
}

/// Only warnings, as nginx without its access log.
const QUIET: &str = "log: {level: warn, access: false}\n";

impl Starter<'_> {
    fn origin(&self) -> Result<Process> {
        let served = fill(
            include_str!("config/nginx-static.conf"),
            &[("http1", &self.origin.to_string()), ("body", &"x".repeat(BODY_BYTES))],
        );
        Ok(self.start_nginx(Side::Surroundings, "origin", "", &served, &[self.origin])?.process)
    }

    fn nginx(&self, name: Name, directory: &str, log: &str) -> Result<Contender> {
        let (http1, http2) = (free_address()?, free_address()?);
        let served = self.nginx_proxy(http1, http2, log);
        let server = self.start_nginx(Side::Proxy, directory, "", &served, &[http1, http2])?;
        Ok(Contender { http2: Some(http2), ..plain(name, server, http1) })
    }

    fn nginx_lua(&self, name: Name) -> Result<Contender> {
        let (redis, redis_address) = self.redis("nginx-lua-redis")?;
        let limit = fill(
            include_str!("config/limit.lua"),
            &[
                ("redis_host", &redis_address.ip().to_string()),
                ("redis_port", &redis_address.port().to_string()),
            ],
        );
        let directory = self.directory("nginx-lua")?;
        fs::write(directory.join("limit.lua"), limit)?;
        let (http1, http2) = (free_address()?, free_address()?);
        let served = format!(
            "lua_package_path \"{}/?.lua;;\";\n{}",
            directory.display(),
            self.nginx_proxy(http1, http2, "access_by_lua_block { require(\"limit\").check() }")
        );
        let modules = format!("load_module {NDK_MODULE};\nload_module {LUA_MODULE};\n");
        let server = self.start_nginx(Side::Proxy, "nginx-lua", &modules, &served, &[http1, http2])?;
        Ok(Contender { http2: Some(http2), redis: Some(redis), ..plain(name, server, http1) })
    }

    fn nginx_static(&self, name: Name) -> Result<Contender> {
        let http1 = free_address()?;
        let served = fill(
            include_str!("config/nginx-static.conf"),
            &[("http1", &http1.to_string()), ("body", &"x".repeat(REFUSAL_BODY_BYTES))],
        );
        Ok(plain(name, self.start_nginx(Side::Proxy, "nginx-static", "", &served, &[http1])?, http1))
    }

    fn haproxy(&self, name: Name) -> Result<Contender> {
        let (http1, http2) = (free_address()?, free_address()?);
        let configuration = self.directory("haproxy")?.join("haproxy.cfg");
        let addresses = [("http1", http1), ("http2", http2), ("origin", self.origin)];
        let addresses = addresses.map(|(name, address)| (name, address.to_string()));
        let addresses = addresses.each_ref().map(|(name, address)| (*name, address.as_str()));
        fs::write(&configuration, fill(include_str!("config/haproxy.cfg"), &addresses))?;
        // In the foreground, as one process.
        let arguments = ["-db".into(), "-f".into(), configuration];
        let server = self.start(Side::Proxy, "haproxy", &program("haproxy"), &arguments, &[http1, http2])?;
        Ok(Contender { http2: Some(http2), ..plain(name, server, http1) })
    }

    /// This program serves as the bare proxy, too.
    fn bare(&self, name: Name) -> Result<Contender> {
        let address = free_address()?;
        let arguments = [BARE.into(), address.to_string().into(), self.origin.to_string().into()];
        let server = self.start(Side::Proxy, "bare", &std::env::current_exe()?, &arguments, &[address])?;
        Ok(Contender { http2: Some(address), ..plain(name, server, address) })
    }

    fn weir_unlimited(&self, name: Name) -> Result<Contender> {
        let weir = Weir { store: "memory", limits: None, routes: 1, log: QUIET };
        let (server, address) = self.start_weir("weir-unlimited", &weir)?;
        Ok(Contender { http2: Some(address), ..plain(name, server, address) })
    }

    fn weir_memory(&self, name: Name) -> Result<Contender> {
        let weir = Weir { store: "memory", limits: Some(PLENTY), routes: 1, log: QUIET };
        let (server, address) = self.start_weir("weir-memory", &weir)?;
        Ok(Contender { http2: Some(address), ..plain(name, server, address) })
    }

    /// The log goes to a file beside the configuration.
    fn weir_shipped(&self, name: Name) -> Result<Contender> {
        let contender = self.weir_with_redis(name, "weir-shipped", PLENTY, "")?;
        Ok(Contender { http2: Some(contender.http1), log: None, ..contender })
    }

    fn weir_redis(&self, name: Name) -> Result<Contender> {
        let contender = self.weir_with_redis(name, "weir-redis", PLENTY, QUIET)?;
        Ok(Contender { http2: Some(contender.http1), ..contender })
    }

    fn weir_refusing(&self, name: Name) -> Result<Contender> {
        let contender = self.weir_with_redis(name, "weir-refusing", ONE, QUIET)?;
        // Takes the only permit.
        contender.ask()?;
        Ok(Contender { status: 429, ..contender })
    }

    fn weir_with_redis(&self, name: Name, directory: &str, limits: &str, log: &str) -> Result<Contender> {
        let (redis, redis_address) = self.redis(&format!("{directory}-redis"))?;
        // A short interruption by another process is no outage.
        let store = format!("{{redis: {{url: \"redis://{redis_address}/0\", timeout: 1s}}}}");
        let weir = Weir { store: &store, limits: Some(limits), routes: 1, log };
        let (server, address) = self.start_weir(directory, &weir)?;
        Ok(Contender { redis: Some(redis), ..plain(name, server, address) })
    }

    fn weir_routes(&self, name: Name, routes: usize) -> Result<Contender> {
        let weir = Weir { store: "memory", limits: None, routes, log: QUIET };
        let (server, address) = self.start_weir(&format!("weir-{routes}-routes"), &weir)?;
        // A route in the middle.
        Ok(Contender { path: format!("{}/", route_path(routes / 2)), ..plain(name, server, address) })
    }

    fn nginx_proxy(&self, http1: SocketAddr, http2: SocketAddr, more: &str) -> String {
        let (http1, http2, origin) = (http1.to_string(), http2.to_string(), self.origin.to_string());
        fill(
            include_str!("config/nginx-proxy.conf"),
            &[("http1", &http1), ("http2", &http2), ("origin", &origin), ("more", more)],
        )
    }

    fn start_nginx(
        &self,
        side: Side,
        name: &str,
        modules: &str,
        served: &str,
        addresses: &[SocketAddr],
    ) -> Result<Server> {
        let directory = self.directory(name)?;
        let configuration = directory.join("nginx.conf");
        fs::write(&configuration, include_str!("config/nginx.conf"))?;
        fs::write(directory.join("modules.conf"), modules)?;
        fs::write(directory.join("http.conf"), served)?;
        let arguments = ["-p".into(), directory, "-c".into(), configuration];
        self.start(side, name, &program("nginx"), &arguments, addresses)
    }

    fn start_weir(&self, name: &str, weir: &Weir<'_>) -> Result<(Server, SocketAddr)> {
        let (address, admin) = (free_address()?, free_address()?);
        let mut text =
            format!("listen: {address}\nadmin: {{listen: \"{admin}\"}}\n{}store: {}\n", weir.log, weir.store);
        let mut limiter = "";
        if let Some(limits) = weir.limits {
            // Without Redis the bench would measure something else, so weir rejects then.
            writeln!(text, "limiters: {{fleet: {{limits: [{limits}], on_store_failure: reject}}}}")?;
            limiter = ", limiter: fleet";
        }
        text += "routes:\n";
        for route in 0..weir.routes {
            let path = if weir.routes == 1 { "/".to_owned() } else { route_path(route) };
            writeln!(
                text,
                "  - {{name: route-{route}, match: {{path: {path}}}, upstream: \"http://{}\"{limiter}}}",
                self.origin
            )?;
        }
        let configuration = self.directory(name)?.join("weir.yaml");
        fs::write(&configuration, text)?;
        let arguments = ["serve".into(), "--config".into(), configuration];
        let server =
            self.start(Side::Proxy, name, Path::new(env!("CARGO_BIN_EXE_weir")), &arguments, &[address])?;
        Ok((server, address))
    }

    fn redis(&self, name: &str) -> Result<(Process, SocketAddr)> {
        let address = free_address()?;
        let port = address.port().to_string();
        let options = ["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no", "--dir"];
        let mut arguments: Vec<PathBuf> = options.map(PathBuf::from).into();
        arguments.push(self.directory(name)?);
        let server =
            self.start(Side::Surroundings, name, &program("redis-server"), &arguments, &[address])?;
        Ok((server.process, address))
    }

    /// Starts a program. The error contains its output if it does not come up.
    fn start(
        &self,
        side: Side,
        name: &str,
        program: &Path,
        arguments: &[PathBuf],
        addresses: &[SocketAddr],
    ) -> Result<Server> {
        let log = self.directory(name)?.join("output.log");
        let output = File::create(&log)?;
        let mut command = self.machine.command(side, program);
        command.args(arguments).stdout(output.try_clone()?).stderr(output);
        match Process::start(command, addresses) {
            Ok(process) => Ok(Server { process, log }),
            Err(problem) => {
                let written = fs::read_to_string(&log)?;
                Err(format!("{}: {problem}\n{written}", program.display()).into())
            }
        }
    }

    /// Returns the directory of a server, created on first use.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        let directory = self.directory.join(name);
        fs::create_dir_all(&directory)?;
        Ok(directory)
    }
}

/// Returns a contender that forwards, and takes HTTP/1.1 only.
fn plain(name: Name, server: Server, http1: SocketAddr) -> Contender {
    let Server { process, log } = server;
    let log = Some(log);
    Contender { name, process, log, redis: None, http1, http2: None, path: "/".to_owned(), status: 200 }
}

/// Returns a route's path, of the same length for any number of routes.
fn route_path(route: usize) -> String {
    format!("/service-{route:05}")
}

/// Replaces `@name@` by values.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| text.replace(&format!("@{name}@"), value))
}
