//! The far end of a sprite's tun device: every packet that leaves a sprite comes here, and nothing else carries it on.
//!
//! One task a sprite. A first packet of a connection is judged, then the host connects, then the connection is accepted.
//! Name queries to any address are answered here and never passed on. A new policy is in force when [`Gateway::set_policy`]
//! answers: what it forbids is cut by then. Everything a sprite can fill has a bound.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::flow::{Flow, Told};
use super::judge::{Host, Judge, Verdict};
use super::names::{NameServers, Transport};
use super::packets::{Key, Packet, datagram, look};
use super::stack::Stack;
use crate::policy::Policy;

/// Connections of one sprite, and datagram flows; more are refused.
const FLOWS: usize = 512;
/// Name queries of one sprite that are under way; more are dropped, and asked again.
const QUERIES: usize = 64;
/// How long the host may take to connect.
const DIAL: Duration = Duration::from_secs(30);
/// A datagram flow that is silent for so long ends.
const IDLE: Duration = Duration::from_secs(60);
/// Packets taken at once, so that flows get their turn.
const BURST: usize = 64;
/// Things told by tasks that wait to be heard.
const TOLD: usize = 256;
/// The port of name queries.
const NAMES: u16 = 53;
const LONGEST: usize = 65_535;

/// What all gateways of a server share.
#[derive(Clone, Debug, Default)]
pub struct GatewaySettings {
    /// Places of the operator's.
    pub hosts: Vec<Host>,
    /// Who is asked about names.
    pub servers: NameServers,
}

/// The far end of one sprite's network. What is under way ends when it is dropped.
pub struct Gateway {
    commands: mpsc::Sender<Command>,
    task: JoinHandle<()>,
}

struct Command(Policy, oneshot::Sender<()>);

/// What tasks tell.
enum Event {
    Flow(Key, Told),
    /// The host connected, or could not.
    Dialled(Key, Option<TcpStream>),
    Datagram(Key, Bytes),
    DatagramsEnd(Key),
}

impl Gateway {
    /// Takes the device over under this policy. Call inside the runtime that shall carry it.
    ///
    /// # Errors
    /// The device cannot be watched.
    pub fn start(device: OwnedFd, settings: GatewaySettings, policy: Policy) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&device, true)?;
        let device = Arc::new(watched(device)?);
        let (commands, commanded) = mpsc::channel(1);
        let (events, heard) = mpsc::channel(TOLD);
        let (told, flows) = mpsc::channel(TOLD);
        let carrier = Carrier {
            judge: Arc::new(Mutex::new(Judge::new(policy, settings.hosts.clone()))),
            stack: Stack::new(Arc::clone(&device), rand::random()),
            device,
            settings,
            flows: HashMap::new(),
            dialling: HashMap::new(),
            datagrams: HashMap::new(),
            queries: Arc::new(Semaphore::new(QUERIES)),
            events,
            told,
        };
        let task = tokio::spawn(carrier.run(commanded, heard, flows));
        Ok(Self { commands, task })
    }

    /// Replaces the policy.
    ///
    /// # Errors
    /// The gateway is gone, and with it every way out.
    pub async fn set_policy(&self, policy: Policy) -> io::Result<()> {
        set_policy(self.commands.clone(), policy).await
    }

    /// As [`Self::set_policy`], as a future of its own.
    pub fn setting_policy(&self, policy: Policy) -> impl Future<Output = io::Result<()>> + Send + use<> {
        set_policy(self.commands.clone(), policy)
    }
}

#[expect(
    unsafe_code,
    reason = "an owned descriptor stays open and the same until the AsyncFd, which owns it, is dropped"
)]
pub(crate) fn watched(device: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    Ok(unsafe { AsyncFd::register(device)? })
}

async fn set_policy(commands: mpsc::Sender<Command>, policy: Policy) -> io::Result<()> {
    let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the gateway is gone");
    let (done, is_done) = oneshot::channel();
    commands.send(Command(policy, done)).await.map_err(|_| gone())?;
    is_done.await.map_err(|_| gone())
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Carrier {
    judge: Arc<Mutex<Judge>>,
    stack: Stack,
    device: Arc<AsyncFd<OwnedFd>>,
    settings: GatewaySettings,
    flows: HashMap<Key, Flow>,
    /// First packets of connections that the host is making.
    dialling: HashMap<Key, (Vec<u8>, Task)>,
    datagrams: HashMap<Key, Datagrams>,
    queries: Arc<Semaphore>,
    events: mpsc::Sender<Event>,
    told: mpsc::Sender<(Key, Told)>,
}

struct Datagrams {
    outgoing: mpsc::Sender<Bytes>,
    _task: Task,
}

/// A task that ends with its holder.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Carrier {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut events: mpsc::Receiver<Event>,
        mut flows: mpsc::Receiver<(Key, Told)>,
    ) {
        loop {
            let due = self.stack.due().unwrap_or(IDLE);
            let device = Arc::clone(&self.device);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command(policy, done)) => {
                        self.replace(policy);
                        let _ = done.send(());
                    }
                    None => return,
                },
                // The carrier holds a sender of each, so neither ends.
                Some((key, told)) = flows.recv() => self.hear(Event::Flow(key, told)),
                Some(event) = events.recv() => self.hear(event),
                readable = device.readable() => match readable {
                    Ok(mut guard) => {
                        if self.read_packets().is_err() {
                            return;
                        }
                        guard.retain_ready();
                        if !self.has_more() {
                            guard.clear_ready();
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "a network device broke");
                        return;
                    }
                },
                () = tokio::time::sleep(due) => {}
            }
            while let Ok((key, told)) = flows.try_recv() {
                self.hear(Event::Flow(key, told));
            }
            self.turn();
        }
    }

    /// Whether packets wait; asked after a burst.
    fn has_more(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(
            self.device.get_ref(),
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn read_packets(&mut self) -> io::Result<()> {
        for _ in 0..BURST {
            let mut packet = vec![0; LONGEST];
            match rustix::io::read(self.device.get_ref(), &mut packet) {
                Ok(length) => {
                    packet.truncate(length);
                    self.take(packet);
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, packet: Vec<u8>) {
        match look(&packet) {
            Packet::Syn(key) => self.open(key, packet),
            Packet::Tcp => self.stack.take(packet),
            Packet::Udp(key, payload) if key.to.port() == NAMES => {
                let query = payload.to_vec();
                self.query(key, query);
            }
            Packet::Udp(key, payload) => {
                let payload = Bytes::copy_from_slice(payload);
                self.datagram(key, payload);
            }
            Packet::Other => {}
        }
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&mut self, key: Key, syn: Vec<u8>) {
        if self.dialling.contains_key(&key) {
            return;
        }
        if self.flows.contains_key(&key) {
            self.stack.take(syn);
            return;
        }
        if self.flows.len() + self.dialling.len() >= FLOWS {
            // Nobody listens there, so it is reset.
            self.stack.take(syn);
            return;
        }
        if key.to.port() == NAMES {
            self.open_names(key, syn);
            return;
        }
        let verdict = self.judge().judge(key.to);
        let Verdict::To(to) = verdict else {
            self.stack.take(syn);
            return;
        };
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            let dialled = tokio::time::timeout(DIAL, TcpStream::connect(to)).await;
            let stream = dialled.ok().and_then(Result::ok);
            if let Some(stream) = &stream {
                let _ = stream.set_nodelay(true);
            }
            let _ = events.send(Event::Dialled(key, stream)).await;
        });
        self.dialling.insert(key, (syn, Task(task)));
    }

    /// Name queries over a connection are answered here, whoever was asked.
    fn open_names(&mut self, key: Key, syn: Vec<u8>) {
        let Some(handle) = self.stack.accept(key.to, syn) else {
            return;
        };
        let (ours, theirs) = tokio::io::duplex(LONGEST + 2);
        let (servers, judge) = (self.settings.servers.clone(), Arc::clone(&self.judge));
        tokio::spawn(async move {
            if let Err(error) = servers.serve(judge, theirs).await {
                tracing::debug!(%error, "a connection of name queries ended");
            }
        });
        self.flows
            .insert(key, Flow::start(key, handle, ours, self.told.clone()));
    }

    fn query(&mut self, key: Key, query: Vec<u8>) {
        let Ok(permit) = Arc::clone(&self.queries).try_acquire_owned() else {
            return;
        };
        let (servers, judge, events) = (
            self.settings.servers.clone(),
            Arc::clone(&self.judge),
            self.events.clone(),
        );
        tokio::spawn(async move {
            if let Some(answer) = servers.answer(&judge, &query, Transport::Udp).await {
                let _ = events.send(Event::Datagram(key, answer.into())).await;
            }
            drop(permit);
        });
    }

    fn datagram(&mut self, key: Key, payload: Bytes) {
        if let Some(flow) = self.datagrams.get(&key) {
            // A flow that is full loses it, as any network may.
            let _ = flow.outgoing.try_send(payload);
            return;
        }
        let verdict = self.judge().judge(key.to);
        let Verdict::To(to) = verdict else { return };
        if self.datagrams.len() >= FLOWS {
            return;
        }
        let (outgoing, from_sprite) = mpsc::channel(BURST);
        let events = self.events.clone();
        let task = tokio::spawn(async move {
            if let Err(error) = exchange(key, to, from_sprite, &events).await {
                tracing::debug!(%error, "a datagram flow ended");
            }
            let _ = events.send(Event::DatagramsEnd(key)).await;
        });
        let _ = outgoing.try_send(payload);
        self.datagrams.insert(
            key,
            Datagrams {
                outgoing,
                _task: Task(task),
            },
        );
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Flow(key, told) => {
                let is_whole = self.flows.get_mut(&key).is_none_or(|flow| flow.hear(told));
                if !is_whole && let Some(flow) = self.flows.remove(&key) {
                    self.stack.abort(flow.handle);
                }
            }
            Event::Dialled(key, stream) => {
                let Some((syn, _)) = self.dialling.remove(&key) else {
                    return;
                };
                let is_allowed = matches!(self.judge().judge(key.to), Verdict::To(_));
                match stream.filter(|_| is_allowed) {
                    Some(stream) => {
                        if let Some(handle) = self.stack.accept(key.to, syn) {
                            let flow = Flow::start(key, handle, stream, self.told.clone());
                            self.flows.insert(key, flow);
                        }
                    }
                    None => self.stack.take(syn),
                }
            }
            Event::Datagram(key, payload) => {
                if let Some(packet) = datagram(key, &payload) {
                    self.stack.send(&packet);
                }
            }
            Event::DatagramsEnd(key) => {
                self.datagrams.remove(&key);
            }
        }
    }

    /// The policy holds for what is under way as for what comes.
    fn replace(&mut self, policy: Policy) {
        self.judge().replace(policy);
        let judge = Arc::clone(&self.judge);
        let judge = judge.lock().unwrap_or_else(PoisonError::into_inner);
        let forbidden = |key: &Key| key.to.port() != NAMES && judge.judge(key.to) == Verdict::Refused;
        let cut: Vec<_> = self.flows.keys().filter(|key| forbidden(key)).copied().collect();
        for key in cut {
            if let Some(flow) = self.flows.remove(&key) {
                self.stack.abort(flow.handle);
            }
        }
        self.datagrams.retain(|key, _| !forbidden(key));
    }

    /// Moves bytes until nothing moves.
    fn turn(&mut self) {
        self.stack.poll();
        let stack = &mut self.stack;
        self.flows.retain(|_, flow| {
            let goes_on = flow.pump(stack);
            if !goes_on {
                stack.remove(flow.handle);
            }
            goes_on
        });
        self.stack.poll();
    }
}

/// Carries datagrams between a sprite and one far end, until both are silent.
async fn exchange(
    key: Key,
    to: std::net::SocketAddr,
    mut from_sprite: mpsc::Receiver<Bytes>,
    events: &mpsc::Sender<Event>,
) -> io::Result<()> {
    let any: std::net::SocketAddr = if to.is_ipv4() {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    let mut buffer = vec![0; LONGEST];
    loop {
        tokio::select! {
            payload = from_sprite.recv() => match payload {
                Some(payload) => drop(socket.send(&payload).await?),
                None => return Ok(()),
            },
            length = socket.recv(&mut buffer) => {
                let payload = Bytes::copy_from_slice(buffer.get(..length?).unwrap_or_default());
                if events.send(Event::Datagram(key, payload)).await.is_err() {
                    return Ok(());
                }
            }
            () = tokio::time::sleep(IDLE) => return Ok(()),
        }
    }
}
