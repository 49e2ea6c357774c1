"""SIGTERM as an exception, also while gRPC waits for an answer; in processes of their own, which it must not abort."""

import subprocess
import sys

import pytest

IN_A_CALL = """
import os, signal, threading, time
from concurrent import futures
import grpc
from pipeline.vertex import termination

def slow(request, context):
    time.sleep(0.6)
    return b"answer"

server = grpc.server(futures.ThreadPoolExecutor(1))
method = grpc.unary_unary_rpc_method_handler(slow)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Slow": method}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
ask = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/test/Slow")
answers = []
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
try:
    with termination.raised(ValueError("ended")):
        while True:
            answers.append(ask(b"", timeout=10))
            time.sleep(0.1)
except ValueError as error:
    print(error, answers)
print(ask(b"", timeout=10), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
ASLEEP = """
import os, signal, threading, time
from pipeline.vertex import termination

started = time.monotonic()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
try:
    with termination.raised(ValueError("ended")):
        time.sleep(60)
except ValueError as error:
    print(error, time.monotonic() - started < 30)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"), [(IN_A_CALL, "ended [b'answer']\nb'answer' True\n"), (ASLEEP, "ended True\n")]
)
def test_the_end_from_outside_is_an_exception_as_soon_as_it_is_safe(code: str, said: str):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, said), done.stderr
