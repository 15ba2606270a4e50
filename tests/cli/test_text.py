#!/usr/bin/env python3
"""test_text.py: calla tokenize and calla template on pocket."""
import json

import command
from command import CommandTest

# From the reference of pocket's greedy chats: rendered by jinja2 from the model's template, tokenized by Hugging Face's tokenizers.
FRANCE = {'messages': [{'role': 'user', 'content': 'What is the capital of France?'}]}
FRANCE_TEXT = '<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n<think>\n'
FRANCE_IDS = [8161, 318, 198, 423, 287, 278, 546, 296, 1759, 30, 8162, 198, 8161, 332, 198, 8184, 198]
IM_END = 8162


class Tokenize(CommandTest):
    def ids(self, text, **more):
        return json.loads(self.works('tokenize', stdin=text, **more))['ids']

    def text(self, ids):
        return json.loads(self.works('tokenize', '--decode', stdin=json.dumps({'ids': ids})))['text']

    def test_known_ids(self):
        self.assertEqual(self.works('tokenize', stdin=FRANCE_TEXT), '{"ids":' + json.dumps(FRANCE_IDS, separators=(',', ':')) + '}\n')

    def test_there_and_back(self):
        for text in ['Hello, world', ' two  blanks ', 'naïve 🙂 café 你好', 'quotes " and \\ and \t tabs\r\n', 'a\0b', FRANCE_TEXT]:
            self.assertEqual(self.text(self.ids(text)), text)

    def test_added_tokens_are_matched(self):
        self.assertEqual(self.ids('<|im_end|>'), [IM_END])
        self.assertEqual(self.text([IM_END]), '<|im_end|>')

    def test_empty_input(self):
        self.assertEqual(self.works('tokenize'), '{"ids":[]}\n')
        self.assertEqual(self.works('tokenize', '--decode', stdin='{"ids":[]}'), '{"text":""}\n')
        self.fails(1, 'standard input', 'tokenize', '--decode')

    def test_half_a_character_is_decoded_as_a_replacement(self):
        halves = self.ids('\U0001f9e9')  # no token of its own: several of fewer bytes
        self.assertGreater(len(halves), 1)
        self.assertIn('\ufffd', self.text(halves[:1]))

    def test_text_that_is_not_utf8(self):
        self.fails(1, 'UTF-8', 'tokenize', stdin=b'good \xff bad')

    def test_wrong_ids(self):
        for wrong in ['[1]', '{"ids":1}', '{"ids":["1"]}', '{"ids":[1.5]}', '{"ids":[-1]}', '{"ids":[2147483648]}', '{"ids":[1', '{"text":""}']:
            self.fails(1, 'standard input', 'tokenize', '--decode', stdin=wrong)
        self.fails(1, '8191', 'tokenize', '--decode', stdin='{"ids":[8191]}')  # a padding row of the embedding


class Template(CommandTest):
    def render(self, request):
        return json.loads(self.works('template', stdin=json.dumps(request)))

    def test_known_chat(self):
        self.assertEqual(self.render(FRANCE), {'text': FRANCE_TEXT, 'ids': FRANCE_IDS})

    def test_thinking_can_be_switched_off(self):
        result = self.render(dict(FRANCE, enable_thinking=False))
        self.assertEqual(result['text'], FRANCE_TEXT + '\n</think>\n\n')
        self.assertEqual(result['ids'], FRANCE_IDS[:-1] + [304, 8185, 304])

    def test_thoughts_of_earlier_turns(self):
        chat = [{'role': 'user', 'content': 'one'}, {'role': 'assistant', 'content': 'two', 'reasoning_content': 'secret'},
                {'role': 'user', 'content': 'three'}]
        self.assertNotIn('secret', self.render({'messages': chat})['text'])
        self.assertIn('secret', self.render({'messages': chat, 'preserve_thinking': True})['text'])

    def test_tools_are_rendered(self):
        tool = {'type': 'function', 'function': {'name': 'get_weather', 'description': 'of a city', 'parameters': {'type': 'object'}}}
        self.assertIn('"name": "get_weather"', self.render(dict(FRANCE, tools=[tool]))['text'])

    def test_text_of_users_never_becomes_a_control_token(self):
        result = self.render({'messages': [{'role': 'user', 'content': 'a<|im_end|>b'}]})
        self.assertIn('a<|im_end|>b<|im_end|>', result['text'])
        self.assertEqual(result['ids'].count(IM_END), 1)

    def test_wrong_requests(self):
        self.fails(1, 'messages', 'template', stdin='{}')
        self.fails(1, 'messages', 'template', stdin='{"messages":1}')
        for wrong in ['', '[]', '{"messages":[', '{"messages":[]} x']:
            self.fails(1, '', 'template', stdin=wrong)
        self.fails(1, 'UTF-8', 'template', stdin=b'{"messages":[{"role":"user","content":"\xff"}]}')


if __name__ == '__main__':
    command.main()
