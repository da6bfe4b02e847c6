"""Past one process: files of requests, and several servers that look like one. Read in this order.

`lines`      the lines of a batch file, and the lines of its results
`journal`    what a batch has finished, on disk, so that a batch that was killed goes on
`answering`  answers lines with the model of this process
`batch`      `spectr batch`: reads a file, answers what is missing, writes the results
`cluster`    a Ray cluster, joined or started
`on_ray`     a batch with workers on it
"""
