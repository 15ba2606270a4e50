"""clients.py: eight clients of mixed behaviour for soak.py.  Each is a function of the world and its own random numbers that makes one exchange
with the server and says what came of it: a word to be counted.  Whatever is wrong is raised as Wrong; what may happen because the server is
being stopped or was killed is a Gone, and only then.
"""
import http.client
import json
import socket
import struct
import time

COUNTRIES = ['France', 'Japan', 'Brazil', 'Kenya', 'Norway', 'Egypt', 'Peru', 'India', 'Spain', 'Canada']
LONG = 'The capital of the country is a city with a river and a harbour. '


class Wrong(Exception):
    """The server did what it must not."""


class Gone(Exception):
    """The connection broke, or the server said that it stops, or has only begun."""


def question(i):
    return f'What is the capital of {COUNTRIES[i % len(COUNTRIES)]}?'


def chat_body(i, tokens, **more):
    return {'messages': [{'role': 'user', 'content': question(i)}], 'temperature': 0, 'max_tokens': tokens, 'enable_thinking': bool(i % 3 == 0),
            **more}


def messages_body(i, tokens, **more):
    thinking = {'type': 'enabled', 'budget_tokens': 4096} if i % 3 == 0 else {'type': 'disabled'}
    return {'messages': [{'role': 'user', 'content': question(i)}], 'temperature': 0, 'max_tokens': tokens, 'thinking': thinking, **more}


def long_body(words, **more):
    return {'messages': [{'role': 'user', 'content': LONG * words + question(words)}], 'temperature': 0, 'max_tokens': 8, 'enable_thinking': False,
            **more}


# ---- one exchange --------------------------------------------------------------------------------------------------------------


def connect(world):
    try:
        return socket.create_connection(('127.0.0.1', world.port), timeout=world.patience)
    except OSError as error:
        raise Gone(f'connect: {error}') from error


def request_bytes(path, body, extra=''):
    data = json.dumps(body).encode()
    return f'POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{extra}\r\n'.encode() + data


def refuse(status, headers, text):
    """What the reply is if it is not a 200."""
    if status == 429:
        if not headers.get('Retry-After', '').isdigit():
            raise Wrong(f'429 without Retry-After: {text[:200]}')
        time.sleep(0.2)
        return 'busy'
    if status == 503 and ('stopping' in text or 'is being loaded' in text):
        raise Gone(text[:200])  # a fault all the same if the server is meant to be up
    raise Wrong(f'status {status}: {text[:300]}')


def post(world, path, body, read=None):
    """(status, headers, text); read(response) may take the body in its own way."""
    connection = http.client.HTTPConnection('127.0.0.1', world.port, timeout=world.patience)
    try:
        connection.request('POST', path, json.dumps(body), {'Content-Type': 'application/json'})
        response = connection.getresponse()
        text = (read or (lambda r: r.read()))(response).decode()
        return response.status, response.headers, text
    except socket.timeout as error:
        raise Wrong(f'{path}: nothing for {world.patience} s') from error
    except (OSError, http.client.HTTPException) as error:
        raise Gone(f'{path}: {error!r}') from error
    finally:
        connection.close()


def events(text):
    """The JSON of each event of a stream."""
    return [json.loads(line[6:]) for line in text.split('\n') if line.startswith('data: ') and line != 'data: [DONE]']


def of_chat(text):
    message = json.loads(text)['choices'][0]['message']
    return [message.get('reasoning_content') or '', message['content'] or '']


def of_chat_stream(text):
    got = events(text)
    if any('error' in e for e in got):
        if 'stopping' in text:
            raise Gone('the server is stopping')
        raise Wrong(f'a stream failed: {text[-300:]}')
    if not text.rstrip().endswith('data: [DONE]'):
        raise Gone('a stream was cut')
    deltas = [e['choices'][0]['delta'] for e in got if e['choices']]
    return [''.join(d.get(k) or '' for d in deltas) for k in ('reasoning_content', 'content')]


def of_messages(text):
    blocks = json.loads(text)['content']
    return [''.join(b.get(k, '') for b in blocks) for k in ('thinking', 'text')]


def of_messages_stream(text):
    got = events(text)
    if any(e['type'] == 'error' for e in got):
        if 'stopping' in text:
            raise Gone('the server is stopping')
        raise Wrong(f'a stream failed: {text[-300:]}')
    if got[-1]['type'] != 'message_stop':
        raise Gone('a stream was cut')
    deltas = [e['delta'] for e in got if e['type'] == 'content_block_delta']
    return [''.join(d.get(k, '') for d in deltas) for k in ('thinking', 'text')]


def ask(world, path, body, parse, key, read=None):
    """Compares the answer with what this question was answered when the server had nothing else to do."""
    status, headers, text = post(world, path, body, read)
    if status != 200:
        return refuse(status, headers, text)
    got = parse(text)
    if world.expect(key, got) != got:
        if world.repeats:
            raise Wrong(f'{key}: {got} instead of {world.expect(key, got)}')
        with world.lock:
            world.counts['other words'] += 1
    return 'answered'


# ---- behaviours ----------------------------------------------------------------------------------------------------------------


def whole(world, random):
    i = random.randrange(30)
    return ask(world, '/v1/chat/completions', chat_body(i, world.tokens), of_chat, ('chat', i))


def streamed(world, random):
    i = random.randrange(30)
    return ask(world, '/v1/chat/completions', chat_body(i, world.tokens, stream=True), of_chat_stream, ('chat', i))


def messages(world, random):
    i, stream = random.randrange(30), random.random() < 0.5
    return ask(world, '/v1/messages', messages_body(i, world.tokens, stream=stream), of_messages_stream if stream else of_messages, ('messages', i))


def long_prompt(world, random):
    words = random.choice(world.lengths)
    return ask(world, '/v1/chat/completions', long_body(words), of_chat, ('long', words))


def leaver(world, random):
    """Leaves before, within or after the prompt, in the middle of the body, politely, by a reset, or half-closed."""
    body = random.choice([long_body(max(world.lengths), stream=True), long_body(max(world.lengths)), chat_body(1, 400, stream=True, ignore_eos=True)])
    data = request_bytes('/v1/chat/completions', body)
    with connect(world) as s:
        try:
            s.sendall(data if random.random() < 0.8 else data[:random.randrange(len(data))])
            way = random.randrange(3)
            if way == 0:
                s.shutdown(socket.SHUT_WR)
            time.sleep(random.random() * 0.3 * world.slowness)
            if random.random() < 0.5:
                s.setblocking(False)
                try:
                    s.recv(1 << random.randrange(14))
                except BlockingIOError:
                    pass
            if way == 1:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        except OSError:
            pass  # it was refused, and closed
    return 'left'


def slow_reader(world, random):
    i = random.randrange(30)

    def crawl(response):
        parts = []
        while part := response.read1(97):
            parts.append(part)
            time.sleep(0.01)
        return b''.join(parts)

    return ask(world, '/v1/chat/completions', chat_body(i, world.tokens, stream=True), of_chat_stream, ('chat', i), crawl)


HOSTILE = [
    (b'GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n', 403),
    (b'GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n', 403),
    (b'GET /health HTTP/1.1\r\n\r\n', 400),
    (b'GET /health HTTP/1.1\nHost: localhost\n\n', 400),
    (b'POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 400),
    (b'POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}', 415),
    (b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc', 400),
    (b'GET /' + b'x' * 9000 + b' HTTP/1.1\r\nHost: localhost\r\n\r\n', 414),
    (b'GET / HTTP/1.1\r\nHost: localhost\r\nX: ' + b'y' * 70000 + b'\r\n\r\n', 431),
    (request_bytes('/v1/chat/completions', {'messages': 5}), 400),
    (request_bytes('/v1/chat/completions', chat_body(0, -3)), 400),
    (request_bytes('/v1/messages', {'messages': [{'role': 'user', 'content': LONG * 40000}], 'max_tokens': 5}), 400),
    (b'POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n[[[[[[[[[', 400),
    (b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n', 413),
]


def hostile(world, random):
    data, want = random.choice(HOSTILE)
    with connect(world) as s:
        down = world.stopping
        try:
            s.sendall(data)
            status = s.recv(4096).split(b' ')
        except socket.timeout as error:
            raise Wrong(f'{data[:60]}: no answer') from error
        except OSError as error:
            raise Gone(f'{data[:60]}: {error!r}') from error
    if len(status) < 2:
        raise Gone(f'{data[:60]}: closed without a word')
    if int(status[1]) not in (want, 503 if down or world.stopping else want, 429):
        raise Wrong(f'{data[:60]}: status {status[1]}, not {want}')
    time.sleep(0.05)
    return 'refused'


def watcher(world, random):
    """Looks at what is cheap: it must be answered at once, however busy the engine is."""
    path = random.choice(['/health', '/metrics', '/v1/models', '/props', '/'])
    begun, down = time.monotonic(), world.stopping
    connection = http.client.HTTPConnection('127.0.0.1', world.port, timeout=world.patience)
    try:
        connection.request('GET', path)
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise Gone(f'{path}: {error!r}') from error
    finally:
        connection.close()
    if response.status != 200 and not ((down or world.stopping) and response.status == 503):
        raise Wrong(f'{path}: status {response.status}: {text[:200]}')
    took = time.monotonic() - begun
    world.note_latency(took)
    if took > 2 * world.slowness:
        raise Wrong(f'{path}: answered after {took:.1f} s')
    time.sleep(0.05)
    return 'seen'


BEHAVIOURS = [whole, streamed, messages, long_prompt, leaver, slow_reader, hostile, watcher]
