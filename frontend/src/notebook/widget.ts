/** The widget of a notebook (anywidget): `render` draws what Python sent with the page's own parts, and gives what ends it. */

import { mount, unmount } from 'svelte'

import { NOWHERE } from '../address'
import { Studio } from '../state.svelte'
import { Client } from '../wire'
import { Held, sentIn } from './held'
import { darkBehind, inShadow } from './look'
import Widget from './Widget.svelte'

export interface Traits { get(name: 'data'): DataView; get(name: 'rules'): string }

export function render({ model, el }: { model: Traits; el: HTMLElement }): () => void {
  const { trace, picture, files } = sentIn(model.get('data'))
  const studio: Studio = new Studio(new Client(new Held(files, () => studio.say('not_exported'))), trace, NOWHERE)
  studio.dark = darkBehind(el)
  studio.calm = matchMedia('(prefers-reduced-motion: reduce)').matches
  const host = document.createElement('div')
  host.dataset.theme = studio.dark ? 'dark' : 'light'
  host.addEventListener('keydown', (event) => event.stopPropagation()) // keys of the scrubber are no commands of the notebook
  el.append(host)
  const root = host.attachShadow({ mode: 'open' })
  const style = document.createElement('style')
  style.textContent = inShadow(model.get('rules'))
  root.append(style)
  const shown = mount(Widget, { target: root, props: { studio, picture } })
  if (trace) void studio.start()
  return () => {
    studio.trace?.leave()
    void unmount(shown)
    host.remove()
  }
}
