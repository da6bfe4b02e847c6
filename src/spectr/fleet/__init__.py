"""Batches of requests, and fleets of servers behind one address. Read the modules in this order:

`lines`          parses the lines of a batch file, and writes the lines of its results
`journal`        saves finished lines to disk, so that a batch that was killed can continue
`answerer`       answers lines with a model in this process
`batch`          `spectr batch`: reads a file, answers the lines that have no result yet, and writes the results
`cluster`        connects to a Ray cluster or starts one
`on_ray`         answers a batch with workers on Ray
`ring`           chooses the replica for a request
`replicas`       the interface to replicas; `over_http` implements it for servers with addresses
`stream_record`  records what a client has received of a stream
`router`         holds the streams of clients, and continues them when a replica is lost; `metrics` has its counters
`plan`           the plan of `spectr deploy`
`serving`        replicas and routers as deployments of Ray Serve
`deploy`         `spectr deploy`: starts and updates these deployments
"""
