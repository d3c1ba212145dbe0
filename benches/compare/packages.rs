//! The programs that the bench needs, installed where they are missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

use rustix::process::getuid;

use crate::load::Result;
use crate::tell;

/// The directories of servers that an ordinary user's search path leaves out.
const FURTHER_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// A path that exists while systemd runs.
const SYSTEMD: &str = "/run/systemd/system";
/// The services that packages would start: programs, and units of the same name.
const SERVICES: [&str; 3] = ["nginx", "haproxy", "redis-server"];

/// Debian's packages, and the sign that they are installed: a program, or a file by its whole path.
pub(crate) struct Part {
    name: &'static str,
    packages: &'static [&'static str],
    shown_by: &'static [&'static str],
}

pub(crate) const NGINX: Part = Part { name: "nginx", packages: &["nginx"], shown_by: &["nginx"] };
pub(crate) const HAPROXY: Part = Part { name: "HAProxy", packages: &["haproxy"], shown_by: &["haproxy"] };
pub(crate) const REDIS: Part =
    Part { name: "Redis", packages: &["redis-server"], shown_by: &["redis-server"] };
pub(crate) const WRK: Part = Part { name: "wrk", packages: &["wrk"], shown_by: &["wrk"] };
pub(crate) const H2LOAD: Part = Part { name: "h2load", packages: &["nghttp2-client"], shown_by: &["h2load"] };
pub(crate) const NGINX_LUA: Part = Part {
    name: "Lua in nginx",
    packages: &["libnginx-mod-http-lua", "lua-nginx-redis"],
    shown_by: &[NDK_MODULE, LUA_MODULE, "/usr/share/lua/5.1/nginx/redis.lua"],
};
/// The file that the module for Lua needs.
pub(crate) const NDK_MODULE: &str = "/usr/lib/nginx/modules/ndk_http_module.so";
pub(crate) const LUA_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_lua_module.so";

/// Returns whether the part is installed, after an installation if need be.
pub(crate) fn obtain(part: &Part) -> bool {
    if is_there(part) {
        return true;
    }
    tell(&format!("{} is missing; installing {} with apt-get", part.name, part.packages.join(" ")));
    match install(part) {
        Ok(()) if is_there(part) => return true,
        Ok(()) => tell(&format!("{} is installed, but not where it is sought", part.name)),
        Err(problem) => tell(&format!("{} cannot be installed: {problem}", part.name)),
    }
    false
}

/// Returns the path of an installed part's program.
pub(crate) fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| PathBuf::from(name))
}

/// Returns whether the part is installed.
pub(crate) fn is_there(part: &Part) -> bool {
    part.shown_by.iter().all(|file| find(file).is_some())
}

fn find(file: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let further = FURTHER_DIRECTORIES.iter().map(PathBuf::from);
    // A whole path replaces the directory that it is joined to.
    env::split_paths(&path).chain(further).map(|directory| directory.join(file)).find(|path| path.is_file())
}

fn install(part: &Part) -> Result<()> {
    let was_installed: Vec<bool> = SERVICES.iter().map(|service| find(service).is_some()).collect();
    if find("apt-get").is_none() {
        return Err("there is no apt-get here".into());
    }
    as_root("apt-get", &["update", "-qq"])?;
    // The packages would start servers; the bench wants none but its own.
    let environment = ["DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get"];
    let options = ["install", "-y", "-qq", "--no-install-recommends"];
    let installed = as_root("env", &[&environment[..], &options, part.packages].concat());
    if Path::new(SYSTEMD).is_dir() {
        for (service, was_installed) in SERVICES.iter().zip(was_installed) {
            if !was_installed && find(service).is_some() {
                as_root("systemctl", &["disable", "--now", "--quiet", service])?;
            }
        }
    }
    installed
}

fn as_root(program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = if getuid().is_root() {
        Command::new(program)
    } else if find("sudo").is_some() {
        let mut command = Command::new("sudo");
        command.arg(program);
        command
    } else {
        return Err("that needs root or sudo".into());
    };
    // The output of apt-get is no part of the report.
    let status = command.args(arguments).stdout(io::stderr()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{program}: {status}").into()) }
}
