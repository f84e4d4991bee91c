//! Two hosts, played by two network namespaces with a cable between them.
//!
//! It takes the right to administer the network. Where that is missing there is nothing to test, unless
//! `HCOMM_REQUIRE_NETNS` is set, as `.ci/run` sets it where namespaces can be made: then it is a failure.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Set where a test that can't make namespaces has failed.
const REQUIRED: &str = "HCOMM_REQUIRE_NETNS";

/// What hosts know about names, if namespaces are to have files of their own.
const FILES: &str = "/etc/netns";

/// Two namespaces: host 0 is 10.77.0.1 and fd77::1, host 1 is 10.77.0.2 and fd77::2, on an interface `cable`. Both have an
/// interface `decoy`, 172.31.77.1.
pub struct Hosts {
    pub names: [String; 2],
}

impl Hosts {
    pub fn new() -> Option<Hosts> {
        let tag = unique("hc");
        let hosts = Hosts { names: [0, 1].map(|host| format!("{tag}-{host}")) };
        let [first, second] = &hosts.names;
        let mut made = ip(&["netns", "add", first]) && ip(&["netns", "add", second]);
        let cable = [
            "link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second,
        ];
        made = made && ip(&cable);
        for (host, name) in hosts.names.iter().enumerate() {
            let (address, six) = (format!("10.77.0.{}/24", host + 1), format!("fd77::{}/64", host + 1));
            made = made
                && ip(&["-n", name, "link", "add", "decoy", "type", "veth", "peer", "name", "yoced"])
                && ip(&["-n", name, "addr", "add", "172.31.77.1/24", "dev", "decoy"])
                && ip(&["-n", name, "addr", "add", &address, "dev", "cable"])
                && ip(&["-n", name, "addr", "add", &six, "dev", "cable", "nodad"])
                && ["lo", "decoy", "yoced", "cable"]
                    .iter()
                    .all(|device| ip(&["-n", name, "link", "set", device, "up"]));
        }
        is_made(made, "two hosts").then_some(hosts)
    }

    /// Drops what this host sends to these ports.
    pub fn block(&self, host: usize, ports: &str) {
        self.rule(host, &["pref", "9", "ipproto", "tcp", "dport", ports, "blackhole"]);
    }

    /// A firewall on each host: what one sends is dropped unless it goes to one of these ports, or comes from one as an
    /// answer does.
    pub fn open_only(&self, ports: &str) {
        for host in 0..self.names.len() {
            self.rule(host, &["pref", "7", "ipproto", "tcp", "dport", ports, "lookup", "main"]);
            self.rule(host, &["pref", "8", "ipproto", "tcp", "sport", ports, "lookup", "main"]);
            self.rule(host, &["pref", "9", "ipproto", "tcp", "blackhole"]);
        }
    }

    fn rule(&self, host: usize, rule: &[&str]) {
        let add = ["-n", &self.names[host], "rule", "add"];
        assert!(ip(&[&add, rule].concat()), "{rule:?}");
    }

    /// Pulls the cable.
    pub fn unplug(&self) {
        assert!(ip(&["-n", &self.names[0], "link", "set", "cable", "down"]));
    }

    /// Gives each host a hosts file. Not everybody may write it.
    pub fn know(&self, lines: [&str; 2]) -> bool {
        let write = |(name, line): (&String, &str)| {
            let folder = Path::new(FILES).join(name);
            let local = "127.0.0.1 localhost\n::1 localhost\n";
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join("hosts"), format!("{local}{line}\n"))
        };
        let written = self.names.iter().zip(lines).map(write).all(|written| written.is_ok());
        is_made(written, "hosts files")
    }

    /// This test binary again, on that host.
    pub fn command(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).arg(std::env::current_exe().unwrap());
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
            let _ = std::fs::remove_dir_all(Path::new(FILES).join(name));
        }
        // Unless others have theirs there.
        let _ = std::fs::remove_dir(FILES);
    }
}

/// One host whose only address beside loopback is this one. Gone with it.
pub struct Host(pub String);

impl Host {
    pub fn new(address: &str) -> Option<Host> {
        let host = Host(unique("hcw"));
        let name = host.0.as_str();
        let made = ip(&["netns", "add", name])
            && ip(&["-n", name, "link", "set", "lo", "up"])
            && ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "lo"]);
        is_made(made, "a host").then_some(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether a test that needs this can go on.
fn is_made(made: bool, what: &str) -> bool {
    let required = std::env::var_os(REQUIRED).is_some_and(|value| !value.is_empty());
    assert!(made || !required, "{what} can't be made of network namespaces, and {REQUIRED} is set");
    made
}

fn ip(arguments: &[&str]) -> bool {
    let quiet = Command::new("ip").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|status| status.success())
}
