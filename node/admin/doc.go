// Package admin is a node's API. Clients reach it over a Unix socket, or over a pipe within the node's
// process. The package has the rights of each caller, and the documents of the API (HTTP and JSON). It has
// the Client that every verb of the command uses, and the errors that a node answers, each with a kind.
package admin
