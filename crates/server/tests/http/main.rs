//! The server from outside: a real one on a free port, with the bundled model, spoken to over sockets.
#![cfg(test)]

mod agents;
mod answers;
mod client;
mod document;
mod documented;
mod errors;
mod fields;
mod grammars;
mod heads;
mod hostile;
mod ignored;
mod isolation;
mod life;
mod messages;
mod ollama;
mod origins;
mod page;
mod prefix;
mod reading;
mod responses;
mod running;
mod several;
mod shapes;
mod tolerance;
