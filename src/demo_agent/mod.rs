//! The demo agent, a real ACP agent that needs no model.
