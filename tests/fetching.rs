//! Packages that are not in the cache are fetched by pixi's options, before the mount and under it.

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use corpus::{
    package::{Built, Entry, Format, Package},
    workspace::{FICTIVE_CHANNEL, Location, Workspace},
};
use rustix::process::Signal;
use support::{Mounted, Sandbox, fuse_or_skip};

/// A web server for files of one folder; it ends with the process.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Serves `folder`, to those who know the token where there is one.
    fn start(folder: PathBuf, token: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let (folder, seen) = (folder.clone(), seen.clone());
                thread::spawn(move || answer(connection, &folder, token, &seen));
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn answer(
    mut connection: TcpStream,
    folder: &std::path::Path,
    token: Option<&str>,
    seen: &Mutex<Vec<String>>,
) {
    let lines = BufReader::new(connection.try_clone().unwrap()).lines();
    let request: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let Some(path) = request.first().and_then(|line| line.split(' ').nth(1)) else {
        return;
    };
    seen.lock().unwrap().push(path.to_owned());
    let is_allowed = token.is_none_or(|token| {
        let header = format!("authorization: bearer {token}");
        request.iter().any(|line| line.to_lowercase() == header)
    });
    let name = path.rsplit('/').next().unwrap_or_default();
    let (status, body) = match fs::read(folder.join(name)) {
        _ if !is_allowed => ("401 Unauthorized", Vec::new()),
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", Vec::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let _ = connection.write_all(head.as_bytes());
    let _ = connection.write_all(&body);
}

/// A workspace of two packages of a channel that does not exist; their archives are in the folder `archives`.
fn sandbox() -> Option<Sandbox> {
    if !fuse_or_skip(1) {
        return None;
    }
    let sandbox = Sandbox::new();
    let packages = archives(&sandbox);
    Workspace::new(&sandbox.workspace())
        .unwrap()
        .environment("default", &packages, &Location::fictive())
        .write()
        .unwrap();
    Some(sandbox)
}

fn archives(sandbox: &Sandbox) -> Vec<Built> {
    ["one", "other"]
        .iter()
        .map(|name| {
            Package::new(name, "1.0", "0")
                .with(Entry::file(format!("share/{name}"), *name))
                .write(&sandbox.folder.join("archives"), Format::Conda)
                .unwrap()
        })
        .collect()
}

fn configure(sandbox: &Sandbox, config: &str) {
    let folder = sandbox.workspace().join(".pixi");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.toml"), config).unwrap();
}

fn read(sandbox: &Sandbox, path: &str) -> std::io::Result<String> {
    fs::read_to_string(sandbox.prefix().join(path))
}

#[test]
fn a_mirror_is_asked_once_for_each_package() {
    let Some(sandbox) = sandbox() else { return };
    let server = Server::start(sandbox.folder.join("archives"), None);
    // Whether or not there is a slash at the end.
    configure(
        &sandbox,
        &format!(
            "[mirrors]\n{:?} = [\"{}/mirrored\"]\n",
            FICTIVE_CHANNEL.trim_end_matches('/'),
            server.address
        ),
    );
    let mounted = sandbox.mount();
    assert_eq!(read(&sandbox, "share/one").unwrap(), "one");
    assert_eq!(read(&sandbox, "share/other").unwrap(), "other");
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    let mut asked = server.requests.lock().unwrap().clone();
    asked.sort();
    assert_eq!(
        asked,
        [
            "/mirrored/linux-64/one-1.0-0.conda",
            "/mirrored/linux-64/other-1.0-0.conda"
        ]
    );

    // Now that they are there, no network is needed.
    let mut command = sandbox.command("pixi-mount");
    command.env("PIXI_OFFLINE", "true");
    Mounted::start(command).unwrap().stop(Signal::INT);
    assert_eq!(server.requests(), 2);
}

#[test]
fn credentials_are_found_where_the_configuration_says() {
    let Some(sandbox) = sandbox() else { return };
    let server = Server::start(sandbox.folder.join("archives"), Some("secret"));
    let credentials = sandbox.folder.join("credentials.json");
    fs::write(&credentials, r#"{"127.0.0.1": {"BearerToken": "secret"}}"#).unwrap();
    let mirrors = format!("[mirrors]\n{FICTIVE_CHANNEL:?} = [{:?}]\n", server.address);

    configure(&sandbox, &mirrors);
    let said = Mounted::start(sandbox.command("pixi-mount")).err().unwrap();
    assert!(
        said.contains("cannot fetch the package") && said.contains("401"),
        "{said}"
    );

    configure(
        &sandbox,
        &format!("authentication-override-file = {credentials:?}\n{mirrors}"),
    );
    let (code, said) = sandbox.mount().stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");

    fs::remove_dir_all(sandbox.package_cache()).unwrap();
    configure(&sandbox, &mirrors);
    let mut command = sandbox.command("pixi-mount");
    command.env("RATTLER_AUTH_FILE", &credentials);
    let (code, said) = Mounted::start(command).unwrap().stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
}

/// A workspace of [`archives`] that are locked by their `file://` URLs, with an empty cache.
fn locked_by_file_url() -> (Sandbox, Vec<Built>) {
    let sandbox = Sandbox::new();
    let packages = archives(&sandbox);
    Workspace::new(&sandbox.workspace())
        .unwrap()
        .environment("default", &packages, &Location::FileUrl)
        .write()
        .unwrap();
    (sandbox, packages)
}

#[test]
fn a_package_that_is_damaged_in_the_cache_is_fetched_again() {
    if !fuse_or_skip(1) {
        return;
    }
    let (sandbox, _) = locked_by_file_url();
    sandbox.mount().stop(Signal::INT);
    let cached = sandbox.package_cache().join("one-1.0-0/share/one");
    fs::write(&cached, "of another size").unwrap();
    let mounted = sandbox.mount();
    assert_eq!(read(&sandbox, "share/one").unwrap(), "one");
    assert_eq!(read(&sandbox, "share/other").unwrap(), "other");
    mounted.stop(Signal::INT);
}

#[test]
fn the_cache_may_be_cleaned_under_a_mount() {
    if !fuse_or_skip(1) {
        return;
    }
    let (sandbox, packages) = locked_by_file_url();
    let mounted = sandbox.mount();
    fs::remove_dir_all(sandbox.package_cache()).unwrap();
    fs::remove_file(&packages[1].path).unwrap();
    assert_eq!(read(&sandbox, "share/one").unwrap(), "one");
    // What cannot be had again is an error, and not something else.
    let error = read(&sandbox, "share/other").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let (code, said) = mounted.stop(Signal::INT);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("other-1.0-0.conda"), "{said}");
}

#[test]
fn a_cache_that_is_read_only_will_do() {
    if rustix::process::geteuid().is_root() {
        eprintln!("nothing is read-only to root: 1 test skipped");
        return;
    }
    let Some(sandbox) = sandbox() else { return };
    let server = Server::start(sandbox.folder.join("archives"), None);
    configure(
        &sandbox,
        &format!("[mirrors]\n{FICTIVE_CHANNEL:?} = [{:?}]\n", server.address),
    );
    sandbox.mount().stop(Signal::INT);
    let cache = sandbox.package_cache();
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o555)).unwrap();
    let mounted = sandbox.mount();
    assert_eq!(read(&sandbox, "share/one").unwrap(), "one");
    mounted.stop(Signal::INT);
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o755)).unwrap();
}
