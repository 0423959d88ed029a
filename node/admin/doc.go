// Package admin is how a node is asked: a Unix socket, or a pipe within the process; who may ask
// there for what; the documents of the API, which is HTTP and JSON; the client that every verb
// of the command uses; and the errors that a node answers, each with a kind.
package admin
