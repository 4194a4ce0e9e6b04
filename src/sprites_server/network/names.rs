//! Answers to name queries: refused by the policy, given by the operator, or asked of the host's own name servers.
//!
//! A query goes out as it came in, so every type of record works; what comes back is remembered before it is delivered.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::judge::{Judge, Known};

/// How long one name server may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Seconds that an operator's host may be remembered.
const TTL: u32 = 30;
/// Bytes of the largest message.
const LONGEST: usize = 65_535;

/// The name servers of the host.
#[derive(Clone, Debug, Default)]
pub struct NameServers(Vec<SocketAddr>);

/// How a query came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Udp,
    Tcp,
}

impl NameServers {
    /// Those of `/etc/resolv.conf`.
    pub fn of_this_host() -> Self {
        let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self::parse(&text)
    }

    /// These.
    pub fn new(servers: Vec<SocketAddr>) -> Self {
        Self(servers)
    }

    fn parse(text: &str) -> Self {
        let servers = text.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            (words.next()? == "nameserver")
                .then(|| words.next()?.parse().ok())
                .flatten()
        });
        Self(servers.map(|address| SocketAddr::new(address, 53)).collect())
    }

    /// The answer to a message; None for one that nobody can answer.
    pub async fn answer(&self, judge: &Arc<Mutex<Judge>>, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let parsed = Packet::parse(query).ok()?;
        if parsed.has_flags(PacketFlag::RESPONSE) {
            return None;
        }
        let [question] = parsed.questions.as_slice() else {
            return reply(&parsed, RCODE::FormatError, None);
        };
        let name = question.qname.to_string();
        let known = lock(judge).known(&name);
        match known {
            Known::Refused => reply(&parsed, RCODE::Refused, None),
            Known::Host(address) => {
                let wanted = matches!(question.qtype, QTYPE::TYPE(TYPE::A) | QTYPE::ANY);
                reply(&parsed, RCODE::NoError, wanted.then_some(address))
            }
            Known::No => match self.ask(query, transport).await {
                Some(answer) => {
                    let addresses = addresses(&answer);
                    // The policy may have changed in the meantime; the judge asks again when the address is used.
                    lock(judge).learn(&name, &addresses);
                    Some(answer)
                }
                None => reply(&parsed, RCODE::ServerFailure, None),
            },
        }
    }

    async fn ask(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        for server in &self.0 {
            let asked = async {
                match transport {
                    Transport::Udp => over_udp(*server, query).await,
                    Transport::Tcp => over_tcp(*server, query).await,
                }
            };
            match timeout(PATIENCE, asked).await {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server could not be asked"),
                Err(_) => tracing::debug!(%server, "a name server did not answer"),
            }
        }
        None
    }

    /// Serves a connection on which messages have their length before them.
    pub async fn serve(
        &self,
        judge: Arc<Mutex<Judge>>,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> io::Result<()> {
        loop {
            let length = match stream.read_u16().await {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut query = vec![0; usize::from(length)];
            stream.read_exact(&mut query).await?;
            let Some(answer) = self.answer(&judge, &query, Transport::Tcp).await else {
                return Ok(());
            };
            let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
            stream.write_u16(length).await?;
            stream.write_all(&answer).await?;
        }
    }
}

fn lock(judge: &Mutex<Judge>) -> std::sync::MutexGuard<'_, Judge> {
    // What is under this lock is whole after every line.
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn over_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; LONGEST];
    loop {
        let length = socket.recv(&mut answer).await?;
        // The number of the query is the only thing that a stranger has to guess beside the port.
        if answer.get(..2) == query.get(..2) && length >= 12 {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream
        .write_u16(u16::try_from(query.len()).map_err(io::Error::other)?)
        .await?;
    stream.write_all(query).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// The IPv4 addresses of an answer.
fn addresses(answer: &[u8]) -> Vec<Ipv4Addr> {
    let Ok(packet) = Packet::parse(answer) else {
        return Vec::new();
    };
    let found = packet.answers.iter().filter_map(|record| match &record.rdata {
        RData::A(a) => Some(Ipv4Addr::from(a.address)),
        _ => None,
    });
    found.collect()
}

/// An answer of our own.
fn reply(query: &Packet<'_>, code: RCODE, address: Option<Ipv4Addr>) -> Option<Vec<u8>> {
    let mut answer = Packet::new_reply(query.id());
    answer.set_flags(PacketFlag::RECURSION_AVAILABLE);
    if query.has_flags(PacketFlag::RECURSION_DESIRED) {
        answer.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    *answer.rcode_mut() = code;
    answer.questions.clone_from(&query.questions);
    if let (Some(address), Some(question)) = (address, query.questions.first()) {
        let data = RData::A(A {
            address: address.into(),
        });
        answer
            .answers
            .push(ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL, data));
    }
    answer.build_bytes_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_name_servers_are_read() {
        let read =
            NameServers::parse("# nameserver 9.9.9.9\nsearch x\nnameserver 10.0.0.2\nnameserver ::1\nnameserver\n");
        assert_eq!(
            read.0,
            [
                ([10, 0, 0, 2], 53).into(),
                SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 53))
            ]
        );
    }
}
