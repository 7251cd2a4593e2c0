//! The server from outside: a real one on a free port, with the bundled model, spoken to over sockets.

mod answers;
mod client;
mod errors;
mod hostile;
mod life;
mod running;
