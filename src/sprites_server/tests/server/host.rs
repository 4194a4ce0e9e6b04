//! A host whose enclosures are directories, and a server above it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use awc::http::{Method, StatusCode};
use fountain_process::{Local, Spawner, Waiting};
use fountain_sprites::enclosure::{Disk, Enclosure, EnclosureError, Enclosures, Facilities, Network, Plan, Stream};
use fountain_sprites::policy::Policy;
use fountain_sprites::{Limits, Running, Settings, serve};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Keeps nothing apart. With layers, the writable one begins as a whole copy of the newest.
pub struct Host(Facilities, Ports);

/// Which port of this host stands for which inside.
pub type Ports = Arc<Mutex<HashMap<u16, u16>>>;

impl Host {
    pub fn new(disk: Disk, ports: Ports) -> Self {
        let facilities = Facilities {
            user_namespace: false,
            mount_namespace: true,
            pid_namespace: false,
            // A host with layers has the rest as well.
            network: match disk {
                Disk::Copy => Network::Host,
                Disk::Overlay => Network::Gateway,
            },
            disk,
            limits: false,
            missing: vec!["it is a fake".to_owned()],
        };
        Self(facilities, ports)
    }
}

struct Inside {
    root: PathBuf,
    ports: Ports,
    closed: watch::Sender<bool>,
}

impl Enclosures for Host {
    fn facilities(&self) -> &Facilities {
        &self.0
    }

    fn check(&self, policy: &Policy) -> Result<(), EnclosureError> {
        if policy.is_enforced() {
            return Err(EnclosureError::Unenforceable("nothing is enforced here".to_owned()));
        }
        Ok(())
    }

    fn open(&self, plan: Plan) -> Waiting<Result<Arc<dyn Enclosure>, EnclosureError>> {
        let root = plan
            .directory
            .join(if self.0.disk == Disk::Copy { "disk" } else { "upper" });
        if !root.exists() {
            match plan.layers.first() {
                Some(newest) => {
                    let copied = Command::new("cp").arg("-aT").args([newest, &root]).status();
                    assert!(copied.unwrap().success());
                }
                None => fs::create_dir_all(root.join("home")).unwrap(),
            }
        }
        let (closed, ports) = (watch::channel(false).0, Arc::clone(&self.1));
        Box::pin(async move { Ok(Arc::new(Inside { root, ports, closed }) as Arc<dyn Enclosure>) })
    }
}

impl Enclosure for Inside {
    fn spawner(&self) -> Arc<dyn Spawner> {
        Arc::new(Local)
    }

    fn root(&self) -> Result<OwnedFd, EnclosureError> {
        Ok(File::open(&self.root)?.into())
    }

    fn home(&self) -> &str {
        "/home"
    }

    fn set_policy(&self, _: Policy) -> Waiting<Result<(), EnclosureError>> {
        Box::pin(async { Ok(()) })
    }

    fn connect(&self, port: u16) -> Waiting<Result<Box<dyn Stream>, EnclosureError>> {
        let port = self.ports.lock().unwrap().get(&port).copied();
        Box::pin(async move {
            let port = port.ok_or(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
            Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?) as Box<dyn Stream>)
        })
    }

    fn close(&self) -> Waiting<()> {
        self.closed.send_replace(true);
        Box::pin(async {})
    }

    fn closed(&self) -> Waiting<()> {
        let mut closed = self.closed.subscribe();
        Box::pin(async move {
            let _ = closed.wait_for(|closed| *closed).await;
        })
    }
}

/// A server with two tokens, `first` and `second`.
pub struct Server {
    root: TempDir,
    disk: Disk,
    ports: Ports,
    running: Running,
}

async fn start(root: &TempDir, disk: Disk, ports: &Ports) -> Running {
    let settings = Settings {
        address: ([127, 0, 0, 1], 0).into(),
        root: root.path().to_owned(),
        tokens: vec!["first".into(), "second".into()],
        enclosures: Arc::new(Host::new(disk, Arc::clone(ports))),
        limits: Limits::default(),
        exec: Default::default(),
        workers: 1,
    };
    serve(settings).await.unwrap()
}

impl Server {
    pub async fn new(disk: Disk) -> Self {
        let root = tempfile::tempdir().unwrap();
        let ports = Ports::default();
        let running = start(&root, disk, &ports).await;
        Self {
            root,
            disk,
            ports,
            running,
        }
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.running.address
    }

    /// What listens on `port` inside every sprite is on `here` of this host.
    pub fn listen(&self, port: u16, here: u16) {
        self.ports.lock().unwrap().insert(port, here);
    }

    /// How many layers are on the disk.
    pub fn layers(&self) -> usize {
        fs::read_dir(self.root.path().join("layers")).unwrap().count()
    }

    /// The next server on the same root, after this one was given no time to put anything in order.
    pub async fn killed(self) -> Self {
        self.running.kill().await;
        let running = start(&self.root, self.disk, &self.ports).await;
        Self { running, ..self }
    }

    async fn raw(
        &self,
        who: &str,
        epoch: Option<&str>,
        method: Method,
        path: &str,
        body: String,
    ) -> (StatusCode, Vec<u8>) {
        // awc asks for one even where nothing is encrypted; another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = awc::Client::builder()
            .timeout(Duration::from_secs(60))
            .disable_redirects()
            .finish();
        let url = format!("http://{}{path}", self.running.address);
        let mut request = client.request(method, url).bearer_auth(who);
        if let Some(epoch) = epoch {
            request = request.insert_header(("Fountain-Epoch", epoch));
        }
        let mut answer = request.send_body(body).await.unwrap();
        (answer.status(), answer.body().await.unwrap().to_vec())
    }

    pub async fn as_who(&self, who: &str, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, answer) = self.raw(who, None, method, path, body).await;
        (status, serde_json::from_slice(&answer).unwrap_or_default())
    }

    pub async fn call(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        self.as_who("first", method, path, body).await
    }

    pub async fn with_epoch(&self, epoch: &str, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let (status, answer) = self.raw("first", Some(epoch), method, path, body.to_string()).await;
        (status, serde_json::from_slice(&answer).unwrap_or_default())
    }

    pub async fn status(&self, method: Method, path: &str) -> StatusCode {
        self.call(method, path, Value::Null).await.0
    }

    pub async fn create(&self, name: &str) {
        let (status, _) = self.call(Method::POST, "/v1/sprites", json!({"name": name})).await;
        assert_eq!(status, StatusCode::CREATED);
    }

    pub async fn put(&self, path: &str, body: &str) -> (StatusCode, Value) {
        let (status, answer) = self.raw("first", None, Method::PUT, path, body.to_owned()).await;
        (status, serde_json::from_slice(&answer).unwrap_or_default())
    }

    pub async fn write(&self, sprite: &str, path: &str, text: &str) {
        let path = format!("/v1/sprites/{sprite}/fs/write?path={path}");
        assert_eq!(self.put(&path, text).await.0, StatusCode::OK);
    }

    pub async fn read(&self, sprite: &str, path: &str) -> String {
        let path = format!("/v1/sprites/{sprite}/fs/read?path={path}");
        let (status, body) = self.raw("first", None, Method::GET, &path, String::new()).await;
        assert_eq!(status, StatusCode::OK);
        String::from_utf8(body).unwrap()
    }

    pub async fn lines(&self, path: &str, body: Value) -> (StatusCode, Vec<Value>) {
        self.lines_of(Method::POST, path, body).await
    }

    pub async fn lines_of(&self, method: Method, path: &str, body: Value) -> (StatusCode, Vec<Value>) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, answer) = self.raw("first", None, method, path, body).await;
        let text = String::from_utf8(answer).unwrap();
        (
            status,
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        )
    }
}
